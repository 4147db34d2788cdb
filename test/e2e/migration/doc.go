// Package migration tries that a cluster goes from Antrea to Fairlead as docs/migrate-from-antrea.md says.
package migration
