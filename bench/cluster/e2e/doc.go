// Package e2e tests Headgate on a real Kubernetes, as people run it: kubectl applies the manifests, images are loaded from
// tarballs, and the tests check what clients and the API server see. They use the cluster of "make cluster" if it runs, with
// new images, and else start one and end it.
package e2e
