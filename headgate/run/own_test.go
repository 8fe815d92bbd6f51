package run

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestServersThatPeopleName(t *testing.T) {
	const everywhere = "0.0.0.0:8080"
	for _, c := range []struct {
		text, listen string
		want         string // the parsed addresses, separated by commas, or the error
	}{
		{"localhost:8000", everywhere, "localhost:8000"},
		{" localhost:8000, B:8000,[fd00::7]:8000", everywhere, "localhost:8000,b:8000,[fd00::7]:8000"},
		{"http://host:8000,http://other:8000/,HTTP://Third:8000/v1", everywhere, "host:8000,other:8000,third:8000"},
		{
			"", everywhere,
			"--endpoints: name your servers, such as --endpoints localhost:8000,gpu-2.internal:8000",
		},
		{"a:1,", everywhere, "--endpoints: an address before or after a comma is missing: write HOST:PORT,HOST:PORT without a comma at the end"},
		{
			"gpu-2.internal", everywhere,
			"--endpoints gpu-2.internal: the port is missing: write gpu-2.internal:8000 if it serves at 8000, as vLLM does",
		},
		{"http://gpu-2", everywhere, "--endpoints http://gpu-2: the port is missing: write gpu-2:8000 if it serves at 8000, as vLLM does"},
		{"8000", everywhere, "--endpoints 8000: the host is missing: write localhost:8000 if it serves on this machine"},
		{
			"https://a:8000", everywhere,
			"--endpoints https://a:8000: headgate run calls servers over plain HTTP only: write HOST:PORT of a port without TLS",
		},
		{
			"http://a:8000/openai/v1", everywhere,
			"--endpoints http://a:8000/openai/v1: write HOST:PORT alone, without a path, such as localhost:8000",
		},
		{"a:8000,A:8000", everywhere, "--endpoints: a:8000 is listed twice: remove one"},
		{"a:0", everywhere, "--endpoints a:0: want host:port, such as 10.0.0.7:8000, [fd00::7]:8000 or engine-1.internal:8000"},
		{"a b:8000", everywhere, "--endpoints a b:8000: want host:port, such as 10.0.0.7:8000, [fd00::7]:8000 or engine-1.internal:8000"},
		{
			"localhost:8080", everywhere,
			"--endpoints localhost:8080: Headgate itself uses this port: change its port with --listen, such as --listen 127.0.0.1:8090",
		},
		{
			"127.0.0.1:8080", ":8080",
			"--endpoints 127.0.0.1:8080: Headgate itself uses this port: change its port with --listen, such as --listen 127.0.0.1:8090",
		},
		{
			"localhost:8080", "127.0.0.1:8080",
			"--endpoints localhost:8080: Headgate itself uses this port: change its port with --listen, such as --listen 127.0.0.1:8090",
		},
		{
			"10.0.0.7:8080", "10.0.0.7:8080",
			"--endpoints 10.0.0.7:8080: Headgate itself uses this port: change its port with --listen, such as --listen 127.0.0.1:8090",
		},
		{"127.0.0.2:8080", "127.0.0.1:8080", "127.0.0.2:8080"},
		{"gpu-2:8080,10.0.0.7:8080", everywhere, "gpu-2:8080,10.0.0.7:8080"},
	} {
		servers, err := parseServers(c.text, c.listen)
		got := strings.Join(servers, ",")
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%q:\n%s\nwant\n%s", c.text, got, c.want)
		}
	}
}

func TestCommandLine(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{
			"--endpoints a:1 --objects x",
			"--endpoints and --objects: your own servers run without objects, control and simulated engines; remove one of the flags; see headgate run --help",
		},
		{
			"--endpoints a:1 --control-flag x",
			"--endpoints and --control-flag: your own servers run without objects, control and simulated engines; remove one of the flags; see headgate run --help",
		},
		{
			"--endpoints=",
			"--endpoints: name your servers, such as --endpoints localhost:8000,gpu-2.internal:8000; see headgate run --help",
		},
		{"--store 127.0.0.1:1", "--store is for the demo of models in storage: add --models; see headgate run --help"},
		{"--mlserver x", "--mlserver is for the demo of models in storage: add --models; see headgate run --help"},
		{
			"--models --endpoints a:1",
			"--models and --endpoints: the demo of models in storage has engines of its own; remove one of the flags; see headgate run --help",
		},
		{
			"--gateway --models",
			"--gateway and --models: a Gateway in the objects has its own address and routes; remove one of the flags; see headgate run --help",
		},
		{"a:1", `unexpected argument "a:1"; see headgate run --help`},
	} {
		if _, err := parseFlags(strings.Fields(c.args), io.Discard); err == nil || err.Error() != c.want {
			t.Errorf("%s: %v, want %s", c.args, err, c.want)
		}
	}
	c, err := parseFlags([]string{"--endpoints", "a:1,b:2"}, io.Discard)
	if err != nil || !slices.Equal(c.Endpoints, []string{"a:1", "b:2"}) || c.Objects != "" || c.ControlMetrics != "" {
		t.Errorf("own servers: %v, %+v", err, c)
	}
}

// The function fault names what a server lacks. The list of models has base models first, in
// whatever order the server lists them.
func TestMissingServerFeaturesAreReported(t *testing.T) {
	serve := func(status int, body string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/v1/models" {
				http.NotFound(w, r)
				return
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}))
		t.Cleanup(s.Close)
		return s.Listener.Addr().String()
	}
	const closed = "127.0.0.1:1" // no server listens at this port
	for server, want := range map[string]string{
		serve(200, `{"data":[{"id":"a","parent":"b"},{"id":"b"}]}`): "",
		serve(200, `{"data":[]}`):                                   "it lists no model",
		serve(200, `<html>`):                                        "it accepts connections, but does not list its models: is it still starting?",
		serve(401, `{}`):                                            "it requires a key: write the key into a file, and add --extproc-flag=--engine-token-file=FILE",
		serve(404, ``):                                              "it answers GET /v1/models with 404: is it a model server?",
		closed:                                                      "it refuses connections: does it run, and listen on this port? On another machine, it must not listen on loopback only",
		"no..such:8000":                                             "its name has no address: is the spelling correct?",
	} {
		client := &http.Client{Timeout: 5 * time.Second}
		if got := fault(t.Context(), client, server); got != want {
			t.Errorf("%s: %q, want %q", server, got, want)
		}
		if want == "" {
			all, err := models(t.Context(), client, "http://"+server)
			if err != nil || len(all) != 2 || all[0].ID != "b" || all[1].ID != "a" {
				t.Errorf("the models are %+v, %v", all, err)
			}
		}
	}
}

// If a name has two loopback addresses, the one at which the server listens is used.
func TestLocalhostAddressOfTheServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	got := oneLoopback(t.Context(), []string{"localhost:" + port, "localhost:1", "gpu-2:8000"})
	if want := []string{"127.0.0.1:" + port, "127.0.0.1:1", "gpu-2:8000"}; !slices.Equal(got, want) {
		t.Errorf("they are %v, want %v", got, want)
	}
	six, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		return // this machine has no IPv6
	}
	defer six.Close()
	_, port, _ = net.SplitHostPort(six.Addr().String())
	if got := oneLoopback(t.Context(), []string{"localhost:" + port}); got[0] != "[::1]:"+port {
		t.Errorf("a server at ::1 alone is looked for at %v", got)
	}
}

// A model's name is quoted for the shell in the commands that users paste.
func TestModelsNameInACommand(t *testing.T) {
	const name = `it's "my" $HOME\model`
	out, err := exec.Command("sh", "-c", "printf %s '"+quote(name)+"'").Output()
	if err != nil || string(out) != `"it's \"my\" $HOME\\model"` {
		t.Errorf("%s, %v", out, err)
	}
}
