// Package uninstall tries that a cluster which Fairlead leaves is as it was before it came.
package uninstall
