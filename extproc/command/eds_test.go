package command

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	edsv3 "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	"google.golang.org/grpc"

	"github.com/headgate/headgate/api/wire"
)

// The fleet uses an endpoint only after the Envoy in the same pod has acknowledged it.
func TestEndpointIsKnownToEnvoyBeforeItCanBePicked(t *testing.T) {
	dir := t.TempDir()
	s := start(t, dir)
	stream, err := edsv3.NewEndpointDiscoveryServiceClient(dial(t, "unix:"+s.socket)).DeltaEndpoints(t.Context(), grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	send := func(r *discoveryv3.DeltaDiscoveryRequest) {
		t.Helper()
		if err := stream.Send(r); err != nil {
			t.Fatal(err)
		}
	}
	receive := func() *discoveryv3.DeltaDiscoveryResponse {
		t.Helper()
		r, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	const address = "127.0.0.1:1" // nothing listens there
	believed := func() bool {
		t.Helper()
		response, err := http.Get("http://" + host + ":9090/metrics") //nolint:noctx // one question
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(text), `endpoint="`+address+`"`)
	}
	send(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{wire.EndpointsCluster}})
	send(&discoveryv3.DeltaDiscoveryRequest{ResponseNonce: receive().GetNonce()})

	pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: new, labels: {app: llama}}\nstatus: {podIP: 127.0.0.1}\n"
	objects := strings.Replace(someObjects, "number: 8000", "number: 1", 1) + "---\n" + pod
	if err := os.WriteFile(filepath.Join(dir, "objects.yaml"), []byte(objects), 0o644); err != nil {
		t.Fatal(err)
	}
	told := receive()
	if !strings.Contains(told.String(), "127.0.0.1") {
		t.Fatalf("Envoy gets %v", told)
	}
	<-time.After(50 * time.Millisecond) // a part of the 200 ms for which Set waits
	if believed() {
		t.Error("it can be picked before Envoy has acknowledged it")
	}
	send(&discoveryv3.DeltaDiscoveryRequest{ResponseNonce: told.GetNonce()})
	for limit := time.After(10 * time.Second); !believed(); {
		select {
		case <-time.After(time.Millisecond):
		case <-limit:
			t.Fatal("it cannot be picked although Envoy has acknowledged it")
		}
	}
	s.cancel()
	if err := <-s.done; err != nil {
		t.Error(err)
	}
}
