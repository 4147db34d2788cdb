// Package config reads the agent's config file and validates it strictly.
//
// The keys are Antrea's wherever Antrea has the key, so Fairlead starts with the ConfigMap of an Antrea cluster. One
// table (Table) lists every key of Antrea's agent and controller, and Fairlead's own, each with one of three effects:
// honoured; ignored, with a warning that says what Fairlead does instead; or refused with the reason, where ignoring
// the key would silently disable encryption, policy or egress. A key that is not in the table is an error. All errors
// in a file are reported together, each with its line and column.
//
// docs/config.md and docs/agent.conf are generated from the same table by this package's tests (go test ./config
// -update).
package config
