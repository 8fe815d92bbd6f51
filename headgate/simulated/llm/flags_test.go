package llm

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/headgate/headgate/internal/engine"
)

func TestFlagsAreThoseOfVLLM(t *testing.T) {
	c, serving, err := parseFlags(strings.Fields("./tiny --host 0.0.0.0 --port 0 --served-model-name tiny small --max-model-len 1024 "+
		"--max-loras 2 --max-cpu-loras 6 --max-num-seqs 9 --max-lora-rank 8 --lora-modules a=sim: b=/b=c --lora-modules d=sim:rank=2 "+
		"--shutdown-timeout 15 --shutdown-delay 2.5 --max-num-queued-reqs 20 --api-key k --enable-request-id-headers --enable-sleep-mode --store-responses "+
		"--sse-keep-alive-interval 0.5 --seed 7 --kind sglang --fault hang@0 --fault status=503"), nil)
	if err != nil {
		t.Fatal(err)
	}
	limits := c.Profile.Limits
	if serving != (Serving{Host: "0.0.0.0"}) || limits.GPUAdapters != 2 || limits.HostAdapters != 6 || limits.MaxSequences != 9 {
		t.Errorf("serving %+v, the limits %+v", serving, limits)
	}
	c.Profile = DefaultProfile()
	want := Config{
		Profile: DefaultProfile(), Model: "./tiny", ServedNames: []string{"tiny", "small"}, MaxModelLen: 1024, MaxLoRARank: 8,
		Adapters:        []Adapter{{"a", "sim:"}, {"b", "/b=c"}, {"d", "sim:rank=2"}},
		ShutdownTimeout: 15 * time.Second, ShutdownDelay: 2500 * time.Millisecond, MaxQueued: 20, APIKey: "k",
		KeepAlive: 500 * time.Millisecond, Seed: 7,
		Faults:           []Fault{{kind: faultHang}, {kind: faultStatus, number: 503, probability: 1}},
		RequestIDHeaders: true, SleepMode: true, StoreResponses: true, Kind: engine.SGLang,
	}
	if diff := cmp.Diff(want, c, cmp.AllowUnexported(Fault{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestInvalidFlagsAreRejected(t *testing.T) {
	broken := t.TempDir() + "/broken.yaml"
	if err := os.WriteFile(broken, []byte("prefil: {}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"--no-such-flag":             "no-such-flag",
		"--port x":                   "invalid argument",
		"tiny small":                 `unexpected argument "small"`,
		"--lora-modules a":           `"a" is not NAME=PATH`,
		"--lora-modules":             "needs an argument",
		"--fault explode":            "there are latency=DURATION",
		"--shutdown-timeout -1":      "times must not be negative",
		"--shutdown-delay -1":        "times must not be negative",
		"--profile " + broken:        `unknown field "prefil"`,
		"--profile /no/such/profile": "/no/such/profile",
	} {
		if _, _, err := parseFlags(strings.Fields(args), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error that says %q", args, err, want)
		}
	}
}

func TestHelpTeaches(t *testing.T) {
	var help bytes.Buffer
	if _, _, err := parseFlags([]string{"--help"}, &help); !errors.Is(err, pflag.ErrHelp) {
		t.Fatal(err)
	}
	for _, part := range []string{"Examples:", "--lora-modules NAME=PATH", "curl ", FaultHeader} {
		if !strings.Contains(help.String(), part) {
			t.Errorf("the help does not show %q", part)
		}
	}
}

func TestCommandPrintsItsAddress(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	out, in := io.Pipe()
	over := make(chan error, 1)
	go func() { over <- Command(ctx, []string{"tiny", "--port", "0"}, in) }()
	said, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	url, ok := strings.CutPrefix(strings.TrimSpace(said), "serving on ")
	if !ok {
		t.Fatalf("it says %q", said)
	}
	client := &http.Client{Transport: &http.Transport{}}
	resp, err := client.Get(url + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("%d, %v", resp.StatusCode, err)
	}
	// The port of the engine is in use now.
	port := url[strings.LastIndexByte(url, ':')+1:]
	if err := Command(ctx, []string{"--port", port}, io.Discard); err == nil {
		t.Error("a second engine serves at the same port")
	}
	stop()
	client.CloseIdleConnections()
	if err := <-over; err != nil {
		t.Errorf("it ended with %v", err)
	}
}

func TestEventLogThatCannotBeOpenedIsAnError(t *testing.T) {
	serving := Serving{Host: "127.0.0.1", EventLog: "/no/such/log"}
	if _, _, err := serving.Listen(t.Context()); err == nil || !strings.Contains(err.Error(), "--event-log: open /no/such/log") {
		t.Errorf("the error is %v", err)
	}
}
