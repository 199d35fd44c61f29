// Package check tests what is in deploy/: the manifests, the Helm chart, the alert rules
// and the dashboard, with the libraries of the programs that read them. It is a module of
// its own because of what these libraries import.
package check
