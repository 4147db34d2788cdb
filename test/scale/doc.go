// Package scale measures one real agent, and the controller, in clusters of up to 5,000 Nodes: what starting, watching
// and a change cost in time, memory and messages. The Nodes, Pods and IPPools are objects of a real API server without
// nodes behind them; the agent and its Open vSwitch are real, on a node of a lab.
package scale
