package ext

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate"
	"github.com/headgate/headgate/headgate/envoy/adapt"
	"github.com/headgate/headgate/headgate/envoy/find"
	"github.com/headgate/headgate/internal/listen"
	"github.com/headgate/headgate/test/realenvoy"
)

// A real Envoy with envoy.yaml serves through each no-op, with buffered and with full duplex
// bodies, and sends its requests to the endpoints in turn.
func TestRealEnvoyServesThroughNoops(t *testing.T) {
	binary, err := find.Envoy(t.Context(), "../../.cache", os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct{ kind, mode string }{
		{"raw", "BUFFERED"}, {"raw", "FULL_DUPLEX_STREAMED"}, {"std", "BUFFERED"}, {"std", "FULL_DUPLEX_STREAMED"},
	} {
		t.Run(c.kind+"/"+c.mode, func(t *testing.T) {
			own, dir := fmt.Sprintf("127.%d.152.%d", 200+os.Getpid()%50, i+1), t.TempDir()
			served := [2]string{upstream(t, own+":8001"), upstream(t, own+":8002")}
			socket := filepath.Join(dir, "x.sock")
			l, err := listen.On("listen", "unix:"+socket)
			if err != nil {
				t.Fatal(err)
			}
			server, err := noop(c.kind, served[:])
			if err != nil {
				t.Fatal(err)
			}
			go func() { _ = serve(t.Context(), server, l) }()

			config, err := adapt.Config(headgate.EnvoyYAML, adapt.Addresses{Listen: own + ":8080", Admin: own + ":9901", Socket: socket},
				bodyMode(c.mode))
			if err != nil {
				t.Fatal(err)
			}
			realenvoy.Start(t, binary, dir, config, own+":8080")

			client := new(http.Client)
			t.Cleanup(client.CloseIdleConnections)
			by := make(map[string]int)
			for range 2 {
				for _, size := range []int{0, 1 << 10, 300 << 10} {
					body := `{"model":"m","prompt":"` + strings.Repeat("x", size) + `"}`
					response, err := client.Post("http://"+own+":8080/v1/completions", "application/json", strings.NewReader(body))
					if err != nil {
						t.Fatal(err)
					}
					got, _ := io.ReadAll(response.Body)
					_ = response.Body.Close()
					if response.StatusCode != http.StatusOK || string(got) != strconv.Itoa(len(body)) {
						t.Errorf("%d bytes: %d, and the engine got %q", len(body), response.StatusCode, got)
					}
					by[response.Header.Get("served")]++
				}
			}
			if by[served[0]] != 3 || by[served[1]] != 3 {
				t.Errorf("requests by endpoint: %v, want 3 each", by)
			}
		})
	}
}

// bodyMode sets in which form Envoy sends bodies of requests to ext_proc.
func bodyMode(mode string) adapt.Change {
	return func(root any) error {
		filters := adapt.At(root, "static_resources", "listeners", 0, "filter_chains", 0, "filters", 0, "typed_config", "http_filters")
		for _, f := range filters.([]any) {
			if f.(map[string]any)["name"] == "envoy.filters.http.ext_proc" {
				adapt.At(f, "typed_config", "processing_mode").(map[string]any)["request_body_mode"] = mode
			}
		}
		return nil
	}
}

// upstream serves at an address, which it returns, and answers with the number of bytes of the
// request.
func upstream(t *testing.T, address string) string {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	is := &http.Server{
		ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n, _ := io.Copy(io.Discard, r.Body)
			w.Header().Set("served", address)
			_, _ = io.WriteString(w, strconv.FormatInt(n, 10))
		}),
	}
	go func() { _ = is.Serve(l) }()
	t.Cleanup(func() { _ = is.Close() })
	return address
}
