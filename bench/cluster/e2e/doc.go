// Package e2e tests Headgate on a real Kubernetes, as users run it: kubectl applies the manifests,
// images are loaded from tarballs, and the tests check what clients and the API server see. If the
// cluster of "make cluster" is running, the tests use it with new images. Otherwise they start a
// cluster and stop it at the end.
package e2e
