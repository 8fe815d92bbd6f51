package apiserver

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// awaitTimeout is the maximum time that Await waits.
const awaitTimeout = 30 * time.Second

// Cluster is an API server with Headgate's CRDs, for one test. Create one with [RunCluster].
type Cluster struct {
	*Server
	testing.TB
	*Objects

	began time.Time
}

// RunCluster is like [Run], but also applies Headgate's CRDs.
func RunCluster(t testing.TB, flags ...string) Cluster {
	t.Helper()
	return runCluster(t, withCRDs, flags)
}

// RunGateways is like [RunCluster], but also applies the CRDs of Gateway API, with
// [Objects.GatewayAPI].
func RunGateways(t testing.TB) Cluster {
	t.Helper()
	return runCluster(t, withGatewayAPI, nil)
}

func runCluster(t testing.TB, at stage, flags []string) Cluster {
	t.Helper()
	s := run(t, at, flags)
	return Cluster{s, t, s.Objects(t), time.Now()}
}

// Await waits until ok returns true. It fails the test if that takes longer than 30 s.
func (c Cluster) Await(what string, ok func() bool) {
	c.Helper()
	deadline := time.After(awaitTimeout)
	for tick := time.NewTicker(5 * time.Millisecond); !ok(); {
		select {
		case <-tick.C:
		case <-deadline:
			c.Fatalf("it does not come true that %s", what)
		}
	}
}

// Allowed returns a configuration for a user with a name, whose rights are RBAC rules: a list in
// YAML.
func (c Cluster) Allowed(name, rules string) *rest.Config {
	c.Helper()
	c.Apply(fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: %[1]s}
rules: %[2]s
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %[1]s}
subjects: [{kind: User, apiGroup: rbac.authorization.k8s.io, name: %[1]s}]
`, name, rules))
	config, err := c.User(name)
	if err != nil {
		c.Fatal(err)
	}
	return config
}

// Asked returns the number of requests that a user has made.
func (c Cluster) Asked(user string) (n int) {
	c.Helper()
	return len(c.Calls(user))
}

// Calls returns the requests of a user in order, such as "update pods/status a": the verb, the
// resource, and the name of the object if there is one.
func (c Cluster) Calls(user string) (all []string) {
	c.Helper()
	for _, r := range c.Requests() {
		if r.User.Name == user {
			resource := strings.TrimSuffix(r.Object.Resource+"/"+r.Object.Subresource, "/")
			all = append(all, strings.TrimSpace(r.Verb+" "+resource+" "+r.Object.Name))
		}
	}
	return all
}

// NothingDenied fails the test if the API server denied any request, or if the user made no
// requests.
func (c Cluster) NothingDenied(user string) {
	c.Helper()
	all := c.Requests()
	if !slices.ContainsFunc(all, func(r Request) bool { return r.User.Name == user }) {
		c.Errorf("%s asked for nothing", user)
	}
	for _, r := range all {
		if r.Denied() {
			c.Errorf("%s of %s was denied to %s", r.Verb, r.URI, r.User.Name)
		}
	}
}

// Requests returns the requests in the audit log that arrived after RunCluster returned.
func (c Cluster) Requests() []Request {
	c.Helper()
	all, err := Requests(c.AuditLog)
	if err != nil {
		c.Fatal(err)
	}
	return slices.DeleteFunc(all, func(r Request) bool { return r.Received.Before(c.began) })
}
