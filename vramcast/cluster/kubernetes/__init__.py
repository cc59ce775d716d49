"""An admission webhook: pods and jobs that name their model get the GPU memory they need (docs/kubernetes.md)."""
