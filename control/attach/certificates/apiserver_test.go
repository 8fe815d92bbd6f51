package certificates_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/control/attach/certificates"
	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/internal/engineclient"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/kube"
	"github.com/headgate/headgate/internal/objects/source"
	"github.com/headgate/headgate/test/apiserver"
)

// unmetered is a Meter that counts nothing.
type unmetered struct{}

func (unmetered) Refused(int)   {}
func (unmetered) Readable(bool) {}

// secretOf returns a Secret in YAML. It uses stringData, which replaces data.
func secretOf(name, chain, key string) string {
	indented := func(text string) string { return strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n    ") }
	return fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: %s, namespace: certs}\ntype: kubernetes.io/tls\ndata: {tls.crt: b2xk, tls.key: b2xk}\n"+
		"stringData:\n  tls.crt: |\n    %s\n  tls.key: |\n    %s\n", name, indented(chain), indented(key))
}

// With permission to get one Secret by name, control reads its certificate, follows its changes,
// keeps it during an outage, and deletes it with the Secret. Control reads no other Secret, and
// stops reading this one when nothing names it.
func TestCertificatesOfAnAPIServer(t *testing.T) {
	c := apiserver.RunCluster(t)
	c.Apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: certs}")
	chain, key := pair(t, time.Now())
	chain2, key2 := pair(t, time.Now())
	c.Apply(secretOf("a", chain, key) + "---\n" + secretOf("b", chain, key))
	config := c.Allowed("control", `
- {apiGroups: [""], resources: [pods], verbs: [list, watch]}
- {apiGroups: [inference.networking.k8s.io], resources: [inferencepools], verbs: [list, watch]}
- {apiGroups: [inference.x-k8s.io], resources: [llmroutes, models, vmodels, poolsettings, endpointlists], verbs: [list, watch]}
`)
	ctx, cancel := context.WithCancel(t.Context())
	const interval = 200 * time.Millisecond
	done, given := make(chan error, 1), make(chan *certificates.Watch, 1)
	from := source.Source{
		Kube: source.Kube{On: true, Config: apiserver.KubeconfigFile(t, config)},
		ByName: func(n kube.Named) {
			n.Secrets.Interval = interval
			given <- certificates.New(n.Secrets, certificates.KeyPairs, slog.New(slog.DiscardHandler))
		},
	}
	go func() {
		done <- from.Follow(ctx, slog.New(slog.DiscardHandler), engineclient.NewTokens(nil), unmetered{}, func(*objects.World) {})
	}()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	w := <-given
	one, two := objects.Name{Namespace: "certs", Name: "a"}, objects.Name{Namespace: "certs", Name: "b"}
	is := w.Name(ctx, []objects.Name{one})[one]
	wants(t, "without the right", is, "", `control may not read it: secrets "a" is forbidden: User "control"`)
	wants(t, "without the right", is, "", "; give the user control get on it with a Role in the namespace certs")
	change := func() plan.Certificate {
		t.Helper()
		select {
		case <-w.Changed():
		case <-time.After(20 * time.Second):
			t.Fatal("timeout waiting for a change")
		}
		return w.Name(ctx, []objects.Name{one})[one]
	}
	c.Apply(`
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: certificates, namespace: certs}
rules: [{apiGroups: [""], resources: [secrets], resourceNames: [a, b], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: certificates, namespace: certs}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: certificates}
subjects: [{kind: User, apiGroup: rbac.authorization.k8s.io, name: control}]`)
	wants(t, "with the right", change(), chain, "")
	c.Apply(secretOf("a", chain2, key2))
	wants(t, "replaced", change(), chain2, "")

	c.Outage()
	known := w.Name(ctx, []objects.Name{one, two})
	wants(t, "in an outage", known[one], chain2, "")
	wants(t, "named in an outage", known[two], "", "control could not read it yet")
	select {
	case <-w.Changed():
		t.Error("an outage is reported as a change")
	case <-time.After(5 * interval): // both Secrets would be read several times by then
	}
	if err := c.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	for limit := time.After(20 * time.Second); known[two].Fault != ""; known = w.Name(ctx, []objects.Name{one, two}) {
		select {
		case <-w.Changed(): // a starting API server may first deny all permissions
		case <-limit:
			t.Fatalf("after the outage the fault is %q", known[two].Fault)
		}
	}
	wants(t, "named in an outage, after it", known[two], chain, "")
	c.Await("the other is as it was", func() bool {
		is := w.Name(ctx, []objects.Name{one, two})[one]
		return string(is.Chain) == chain2 && is.Fault == ""
	})

	c.Delete(secretOf("a", chain2, key2))
	select {
	case <-w.Changed():
	case <-time.After(20 * time.Second):
		t.Fatal("the deletion is not reported")
	}
	wants(t, "deleted", w.Name(ctx, []objects.Name{one})[one], "",
		"it does not exist: make it with kubectl create secret tls a --namespace certs")
	asked := func(name string) (n int) {
		t.Helper()
		requests := c.Requests()
		for _, r := range requests {
			if r.User.Name != "control" || r.Object.Resource != "secrets" {
				continue
			}
			if r.Verb != "get" || r.Object.Namespace != "certs" {
				t.Errorf("the request is to %s Secret %s/%s", r.Verb, r.Object.Namespace, r.Object.Name)
			}
			if r.Object.Name == name {
				n++
			}
		}
		return n
	}
	was, next := asked("b"), asked("a")
	c.Await("the one that is named is read again", func() bool { return asked("a") > next+1 })
	if now := asked("b"); now > was {
		t.Errorf("a Secret that is no longer named is read %d times", now-was)
	}
}
