"""An admission webhook: pods and jobs which name their model get the GPU memory they need (docs/kubernetes.md)."""
