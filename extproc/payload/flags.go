package payload

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/headgate/headgate/extproc/metrics"
	"github.com/headgate/headgate/extproc/payload/sink"
	"github.com/headgate/headgate/internal/engineclient"
)

// DefaultQueue is the number of payloads that may wait for a sink. ModelMesh has the same default
// for MM_PAYLOAD_PROCESSORS_CAPACITY.
const DefaultQueue = 64

// Flags configure payloads on the command line. With the zero Flags, nothing is copied.
type Flags struct {
	processors []string
	queue      int
	caFile     string
	tokenFile  string
}

// Register adds the flags to fs.
func (f *Flags) Register(fs *pflag.FlagSet) {
	fs.StringArrayVar(&f.processors, "payload-processor", nil,
		"post copies of requests and answers to this `URL`, http(s)://HOST[:PORT]/PATH[?MODEL][#METHOD]. With logger://*, log their metadata without their content. May be repeated, or contain several URLs with spaces between. Envoy's filter named payloads must be enabled, too. Sinks receive what users send and get")
	fs.IntVar(&f.queue, "payload-queue", DefaultQueue, "queue at most `N` copies for one sink; drop and count any more")
	fs.StringVar(&f.caFile, "payload-ca-file", "", "for sinks with https: trust only the certificate authorities in this PEM `FILE`")
	fs.StringVar(&f.tokenFile, "payload-token-file", "", "send sinks the bearer token in this `FILE`, which may be replaced at any time")
}

// Check returns an error if flags are invalid or contradict each other.
func (f *Flags) Check() error {
	sinks, err := f.sinks()
	switch {
	case err != nil:
		return err
	case f.queue < workers:
		return fmt.Errorf("--payload-queue %d: it must be at least %d", f.queue, workers)
	case len(sinks) == 0 && f.caFile+f.tokenFile != "":
		return errors.New("--payload-ca-file and --payload-token-file need --payload-processor")
	}
	return nil
}

func (f *Flags) sinks() (all []sink.Sink, err error) {
	for text := range strings.FieldsSeq(strings.Join(f.processors, " ")) {
		s, err := sink.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("--payload-processor: %w", err)
		}
		if f.tokenFile != "" && s.URL != nil && s.URL.Scheme == "http" && !loopback(s.URL.Hostname()) {
			return nil, fmt.Errorf("--payload-token-file: %s would send the token unencrypted: use https", s)
		}
		all = append(all, s)
	}
	return all, nil
}

func loopback(host string) bool {
	at, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && at.IsLoopback()
}

// Open reads the files that the flags name, and returns a Server.
func (f *Flags) Open(m *metrics.Meter, log *slog.Logger) (*Server, error) {
	sinks, err := f.sinks()
	if err != nil {
		return nil, err
	}
	c := Config{Sinks: sinks, Queue: f.queue, Meter: m, Log: log, TLS: &tls.Config{MinVersion: tls.VersionTLS12}}
	if f.caFile != "" {
		text, err := os.ReadFile(f.caFile)
		if err != nil {
			return nil, fmt.Errorf("--payload-ca-file: %w", err)
		}
		if c.TLS.RootCAs = x509.NewCertPool(); !c.TLS.RootCAs.AppendCertsFromPEM(text) {
			return nil, errors.New("--payload-ca-file: " + f.caFile + " contains no PEM certificate")
		}
	}
	if f.tokenFile != "" {
		file, err := engineclient.OpenToken(f.tokenFile, log)
		if err != nil {
			return nil, fmt.Errorf("--payload-token-file: %w", err)
		}
		c.Token = file.Token
	}
	return New(c), nil
}
