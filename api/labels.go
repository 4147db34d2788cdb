package api

// AgentPodSelector selects the Pods of fairlead-agent in kube-system.
const AgentPodSelector = "app.kubernetes.io/name=fairlead-agent"
