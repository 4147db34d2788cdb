// Package events measures what host and pods of a real cluster under traffic lose while its components are killed,
// replaced and upgraded, and prints it. It has tests only.
package events
