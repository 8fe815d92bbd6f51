//go:build cluster

package e2e

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/bench/leader"
)

// runtimes installs Headgate with the example of model runtimes.
func runtimes(t *testing.T) (sys, models *space) {
	t.Helper()
	sys, models = apply(t, "modelruntime", "models")
	sys.gatewayServes()
	models.rolledOut("deployment/runtimes")
	return sys, models
}

// secret returns the value of a key in the Secret that control creates.
func (s *space) secret(key string) []byte {
	s.t.Helper()
	text, err := base64.StdEncoding.DecodeString(s.kubectl("get", "secret", "headgate-placement", "--output",
		"go-template={{index .data \""+key+"\"}}"))
	if err != nil || len(text) == 0 {
		s.t.Fatalf("the Secret has no %s: %v", key, err)
	}
	return text
}

// bearing returns a context for calls that send the bearer token under a key of the Secret.
func (s *space) bearing(key string) context.Context {
	return metadata.AppendToOutgoingContext(s.t.Context(), "authorization", "Bearer "+string(s.secret(key)))
}

// mesh returns a client of ModelMesh's API, connected to the leading control, and a context with
// the Secret's token for its calls.
func (s *space) mesh() (context.Context, mmesh.ModelMeshClient) {
	s.t.Helper()
	authorities := x509.NewCertPool()
	authorities.AppendCertsFromPEM(s.secret("ca.crt"))
	const service = "headgate-placement." + system + ".svc"
	conn, err := grpc.NewClient("passthrough:///"+service+".cluster.local:8034",
		grpc.WithTransportCredentials(credentials.NewClientTLSFromCert(authorities, service)),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return k8s.Dial(ctx, "tcp", address) }))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	if err := leader.Await(ctx, conn); err != nil {
		s.t.Fatal(err)
	}
	return s.bearing("mesh-token"), mmesh.NewModelMeshClient(conn)
}

// withoutMeshToken removes the token for clients of ModelMesh from the Secret, because older
// versions wrote the Secret without it. Then it restarts control, which adds the token.
func (s *space) withoutMeshToken() {
	s.t.Helper()
	s.kubectl("patch", "secret", "headgate-placement", "--type=json", `--patch=[{"op": "remove", "path": "/data/mesh-token"}]`)
	s.kubectl("rollout", "restart", "deployment/headgate-control")
	s.rolledOut("deployment/headgate-control")
}

// Clients of ModelMesh register models. These become Model objects, are loaded when a request names
// them, and survive the control that loaded them. The next control continues a load that the last
// one began, so that there is only one copy.
func TestRegisteredModelsOutliveTheControlThatDecided(t *testing.T) {
	sys, models := runtimes(t)
	await(t, "the node's proxy has heard of all since an outage of the API server", 2*time.Minute, func() bool { // kube-proxy may take 80 s
		client := k8s.Client()
		defer client.CloseIdleConnections()
		code, err := complete(t.Context(), client, "llama", 2, false)
		return err == nil && code == http.StatusOK
	})
	loaded := func(name string) bool {
		out := models.kubectl("get", "models")
		return slices.ContainsFunc(strings.Split(out, "\n"), func(line string) bool {
			return strings.Contains(line, name) && strings.Contains(line, "Loaded")
		})
	}
	await(t, "control has found the runtimes, and has the declared model on one that must have a copy", time.Minute, func() bool {
		return loaded("churn")
	})
	ctx, mesh := sys.mesh()
	register := func(id, path string, load bool) {
		t.Helper()
		st, err := mesh.RegisterModel(ctx, &mmesh.RegisterModelRequest{
			ModelId: id, ModelInfo: &mmesh.ModelInfo{Type: "demo", Path: path},
			LoadNow: load,
		})
		if err != nil {
			t.Fatalf("%s: %v, %v", id, st, err)
		}
	}
	client := k8s.Client()
	defer client.CloseIdleConnections()

	register("模型/v1", "sim:?size=80Mi&load=200ms", false)
	if code, err := complete(t.Context(), client, "模型/v1", 2, false); err != nil || code != http.StatusOK {
		t.Errorf("a registered model answers %d, %v", code, err)
	}
	await(t, "kubectl shows the model", 20*time.Second, func() bool { return loaded("模型/v1") })

	// A Model that requires a copy and is created while everything runs is loaded at the first
	// attempt.
	late := "testdata/late"
	models.apply(late)
	await(t, "a Model that comes late is loaded", 20*time.Second, func() bool {
		state := models.kubectl("get", "model", "late", "--output", `jsonpath={.status.conditions[?(@.type=="Ready")].reason}`)
		if state == "CannotLoad" {
			t.Fatal(models.kubectl("get", "models"))
		}
		return state == "Loaded"
	})
	models.kubectl("delete", "--kustomize", late)

	// The leading control is killed during a load.
	register("slow", "sim:?size=300Mi&load=8s", true)
	copies := func(id string) (all []string) {
		out := models.kubectl("get", "models", "--output",
			`go-template={{range .items}}{{$id := .spec.id}}{{range .status.copies}}{{$id}} {{.endpoint}} {{.state}}{{"\n"}}{{end}}{{end}}`)
		for line := range strings.Lines(out) {
			if f := strings.Fields(line); len(f) == 3 && f[0] == id {
				all = append(all, f[1]+" "+f[2])
			}
		}
		return all
	}
	await(t, "it is written down that the load began", 20*time.Second, func() bool {
		all := copies("slow")
		return len(all) == 1 && strings.HasSuffix(all[0], " loading")
	})
	holder := sys.kubectl("get", "lease", "headgate-control", "--output", "jsonpath={.spec.holderIdentity}")
	if err := k8s.Kill(t.Context(), system, holder, "control"); err != nil {
		t.Fatal(err)
	}
	await(t, "the load was taken up", time.Minute, func() bool {
		all := copies("slow")
		return len(all) == 1 && strings.HasSuffix(all[0], " loaded")
	})
	for _, id := range []string{"slow", "模型/v1", "churn/v1", "fraud/v3"} {
		if code, err := complete(t.Context(), client, id, 2, false); err != nil || code != http.StatusOK {
			t.Errorf("after that %s answers %d, %v", id, code, err)
		}
	}

	ctx, mesh = sys.mesh()
	movesVModel(ctx, t, models, mesh)
	for _, id := range []string{"slow", "模型/v1"} {
		if _, err := mesh.UnregisterModel(ctx, &mmesh.UnregisterModelRequest{ModelId: id}); err != nil {
			t.Error(err)
		}
	}
	if _, err := mesh.UnregisterModel(ctx,
		&mmesh.UnregisterModelRequest{ModelId: "churn/v1"}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a declared model is unregistered: %v", err)
	}
	await(t, "they are gone", 20*time.Second, func() bool { return !strings.Contains(models.kubectl("get", "models"), "模型/v1") })
	if _, err := mesh.UnregisterModel(t.Context(), &mmesh.UnregisterModelRequest{ModelId: "x"}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("who sends no token is told %v", err)
	}
	if _, err := mesh.UnregisterModel(sys.bearing("token"),
		&mmesh.UnregisterModelRequest{ModelId: "x"}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("who sends the token of extprocs is told %v", err)
	}
	sys.withoutMeshToken()
	sys.secret("mesh-token")
}

// movesVModel moves a VModel to another model, and checks that a VModel object exists until the
// VModel is deleted.
func movesVModel(ctx context.Context, t *testing.T, models *space, mesh mmesh.ModelMeshClient) {
	t.Helper()
	client := k8s.Client()
	defer client.CloseIdleConnections()
	for _, target := range []string{"模型/v1", "slow"} {
		if st, err := mesh.SetVModel(ctx, &mmesh.SetVModelRequest{VModelId: "moves", TargetModelId: target, Sync: true}); err != nil ||
			st.GetActiveModelId() != target {
			t.Errorf("a VModel to %s: %v, %v", target, st, err)
		}
		await(t, "kubectl shows where it goes", 20*time.Second, func() bool {
			return models.kubectl("get", "vmodels", "--output", `jsonpath={.items[*].spec.id} {.items[*].status.active}`) == "moves "+target
		})
		if code, err := complete(t.Context(), client, "moves", 2, false); err != nil || code != http.StatusOK {
			t.Errorf("a VModel that goes to %s answers %d, %v", target, code, err)
		}
	}
	if _, err := mesh.DeleteVModel(ctx, &mmesh.DeleteVModelRequest{VModelId: "moves"}); err != nil {
		t.Error(err)
	}
	await(t, "its object is gone", 20*time.Second, func() bool { return models.kubectl("get", "vmodels", "--output", "name") == "" })
}
