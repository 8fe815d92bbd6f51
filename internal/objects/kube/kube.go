// Package kube fills a Set of objects from a Kubernetes API server, follows every change, and writes status there.
package kube
