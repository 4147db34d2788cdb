// Package events measures and prints how much traffic hosts and pods of a real cluster lose while its components are
// killed, replaced and upgraded. It has tests only.
package events
