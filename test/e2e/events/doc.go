// Package events has a real cluster busy while its parts die, are replaced and upgraded, and prints what that cost host
// and pods. It has tests only.
package events
