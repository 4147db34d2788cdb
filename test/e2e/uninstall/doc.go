// Package uninstall tests that uninstalling Fairlead restores a cluster to its state before the installation.
package uninstall
