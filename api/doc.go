// Package api has the values that Fairlead's packages exchange and the names that users and other programs see:
// records, config file types, annotation and event names. It has no logic and no client, so that every package may
// import it and it imports none of them.
package api
