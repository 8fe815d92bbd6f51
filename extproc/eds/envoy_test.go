package eds_test

import (
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	edsv3 "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	"google.golang.org/grpc"

	"github.com/headgate/headgate"
	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/eds"
	"github.com/headgate/headgate/headgate/envoy/adapt"
	"github.com/headgate/headgate/headgate/envoy/find"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/test/realenvoy"
	"github.com/headgate/headgate/test/times"
)

var changes = flag.Int("changes", 10,
	"tell a real Envoy about this many new endpoints; with 100 and more, fail if that takes too long")

// When Set returns, a real Envoy knows a new endpoint, and serves there a request that names the
// endpoint.
func TestRealEnvoyGetsNewEndpoints(t *testing.T) {
	binary, err := find.Envoy(t.Context(), "../../.cache", os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	own, dir := fmt.Sprintf("127.%d.150.2", 200+os.Getpid()%50), t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "extproc.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := eds.New(slog.New(slog.NewTextHandler(t.Output(), nil)))
	served := grpc.NewServer()
	edsv3.RegisterEndpointDiscoveryServiceServer(served, server)
	go func() { _ = served.Serve(l) }()
	t.Cleanup(func() {
		server.Close()
		served.Stop()
	})
	server.Set(t.Context(), eds.Endpoints(objects.Build(objects.Set{}), ""))

	// A request header names the endpoint, instead of a decision of extproc.
	named := map[string]any{"name": "envoy.filters.http.header_to_metadata", "typed_config": map[string]any{
		"@type": "type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config",
		"request_rules": []any{map[string]any{"header": "endpoint", "on_header_present": map[string]any{
			"metadata_namespace": wire.DestinationNamespace, "key": wire.DestinationHeader,
		}}},
	}}
	router := map[string]any{"name": "envoy.filters.http.router", "typed_config": map[string]any{
		"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
	}}
	config, err := adapt.Config(headgate.EnvoyYAML, adapt.Addresses{Listen: own + ":8080", Admin: own + ":9901", Socket: l.Addr().String()},
		func(root any) error {
			manager := adapt.At(root, "static_resources", "listeners", 0, "filter_chains", 0, "filters", 0, "typed_config")
			manager.(map[string]any)["http_filters"] = []any{named, router}
			return nil
		})
	if err != nil {
		t.Fatal(err)
	}
	realenvoy.Start(t, binary, dir, config, own+":8080")

	// ask sends a request that names an endpoint, and returns the endpoint that served it; empty if
	// none did.
	client := new(http.Client)
	t.Cleanup(client.CloseIdleConnections)
	ask := func(endpoint string) string {
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+own+":8080/v1/models", nil)
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("endpoint", endpoint)
		response, err := client.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		return response.Header.Get("served")
	}
	var set, until times.Times
	var all []string
	late := 0 // number of times that the first request after Set failed
	for i := range *changes {
		all = append(all, endpoint(t, fmt.Sprintf("%s:%d", own, 21000+i)))
		newest := all[i]
		if got := ask(newest); got != "" {
			t.Fatalf("%s serves before Envoy knows it", got)
		}
		w := objects.Build(objects.Endpoints(all))
		began := time.Now()
		server.Set(t.Context(), eds.Endpoints(w, ""))
		set = append(set, time.Since(began))
		for got := ask(newest); got != newest; got = ask(newest) {
			if got != "" || time.Since(began) > 10*time.Second {
				t.Fatalf("a request for %s is served by %q", newest, got)
			}
			late++
		}
		until = append(until, time.Since(began))
	}
	t.Logf("from a World with a new endpoint until Set has returned: %v; until a request is served there: %v (%d requests came too early)",
		set, until, late)
	until.Bound(t, "a new endpoint", 50*time.Millisecond)
}

// endpoint serves at an address and answers each request with that address.
func endpoint(t *testing.T, address string) string {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	is := &http.Server{
		ReadHeaderTimeout: time.Minute,
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("served", address) }),
	}
	go func() { _ = is.Serve(l) }()
	t.Cleanup(func() { _ = is.Close() })
	return address
}
