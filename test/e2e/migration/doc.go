// Package migration tests the migration of a cluster from Antrea to Fairlead by docs/migrate-from-antrea.md.
package migration
