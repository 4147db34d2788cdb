// Package api holds the values that Fairlead's packages hand to each other and
// the names that users and other programs see: records, config file types,
// annotation and event names. It has no logic and no client, so that every
// package may import it and it imports none of them.
package api
