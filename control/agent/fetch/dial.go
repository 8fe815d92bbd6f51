package fetch

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/headgate/headgate/control/agent/storage"
)

const (
	connectTimeout = 10 * time.Second
	// answerTimeout is how long a server may take to begin an answer.
	answerTimeout = 30 * time.Second
	// stallTimeout is how long a server may send no byte of a body.
	stallTimeout = time.Minute
	// maxRedirects is how many redirects of a request are followed, as in net/http.
	maxRedirects = 10
)

// RefusedError is the reason why an address or a name is refused.
type RefusedError struct {
	Address netip.Addr
	Host    string // the host of a URL that is refused for its name; Address is then not valid
}

func (e *RefusedError) Error() string {
	if e.Host != "" {
		return fmt.Sprintf("the server has the name %q, which is an unusual form of an address or that of a metadata service", e.Host)
	}
	return fmt.Sprintf("the server has the address %v, which is link-local or that of a metadata service", e.Address)
}

// Dial connects to an address, unless that is link-local or of a metadata service of a cloud. It
// checks the address to which it connects, after name resolution, so that a name that resolves
// differently a second time does not pass.
func Dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: connectTimeout, KeepAlive: 30 * time.Second, Control: func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		return checkAddress(at.Addr())
	}}
	return d.DialContext(ctx, network, address)
}

// metadata are addresses of clouds' metadata services that are not link-local: Azure's, Alibaba's,
// Oracle's, and those of AWS, of EKS and of Google with IPv6.
var metadata = []netip.Addr{
	netip.MustParseAddr("168.63.129.16"), netip.MustParseAddr("100.100.100.200"), netip.MustParseAddr("192.0.0.192"),
	netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("fd00:ec2::23"), netip.MustParseAddr("fd20:ce::254"),
}

// checkAddress returns an error for a forbidden address. It also checks IPv4 addresses that are
// embedded in IPv6: mapped, compatible, NAT64 and 6to4.
func checkAddress(a netip.Addr) error {
	a = a.Unmap().WithZone("")
	forms := []netip.Addr{a}
	if b := a.As16(); a.Is6() {
		for _, at := range []struct {
			prefix string
			from   int
		}{{"::/96", 12}, {"64:ff9b::/96", 12}, {"2002::/16", 2}} {
			if netip.MustParsePrefix(at.prefix).Contains(a) {
				forms = append(forms, netip.AddrFrom4([4]byte(b[at.from:at.from+4])))
			}
		}
	}
	for _, form := range forms {
		if form.IsLinkLocalUnicast() || form.IsMulticast() {
			return &RefusedError{Address: a}
		}
		if slices.Contains(metadata, form) {
			return &RefusedError{Address: a}
		}
	}
	return nil
}

// newTransport returns a transport that connects with opts.Dial. It trusts the system's CAs and the
// source's certificate field. It uses HTTP/1.1, so that each part of a download has a connection of
// its own. The caller must call CloseIdleConnections.
func newTransport(src storage.Source, opts Options) (*http.Transport, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if pem := src.Fields["certificate"]; pem != "" {
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM([]byte(pem)) {
			return nil, failure(src, Invalid, "certificate in %s holds no PEM certificate; correct it", credentials(src))
		}
		config.RootCAs = pool
	}
	if off := strings.ToLower(src.Fields["verify_ssl"]); off == "0" || off == "false" {
		config.InsecureSkipVerify = true
	}
	if certificate := src.Fields["client_certificate"]; certificate != "" {
		pair, err := tls.X509KeyPair([]byte(certificate), []byte(src.Fields["client_key"]))
		if err != nil { // its text is not shown: it may have parts of the key
			return nil, failure(src, Invalid, "client_certificate and client_key in %s are no pair; correct them", credentials(src))
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: opts.Dial, TLSClientConfig: config, TLSHandshakeTimeout: connectTimeout,
		ResponseHeaderTimeout: answerTimeout, MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute, DisableCompression: true,
	}, nil
}

// certificateFault returns words for an error of a server's certificate.
func certificateFault(err error) (what string, ok bool) {
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &unknown):
		return "the server's certificate is signed by an unknown authority", true
	case errors.As(err, &name):
		return "the server's certificate is for another host", true
	case errors.As(err, &invalid):
		return "the server's certificate is expired or not valid", true
	}
	return "", false
}

// described returns words for an error of a connection. They contain no query of a URL, and no text
// of the server.
func described(err error) string {
	if link, ok := errors.AsType[*url.Error](err); ok {
		err = link.Err
	}
	var operation *net.OpError
	var name *net.DNSError
	var number syscall.Errno
	var plain tls.RecordHeaderError
	switch {
	case errors.As(err, &plain):
		return "the server does not speak TLS"
	case errors.As(err, &name):
		return fmt.Sprintf("the name %q cannot be resolved", name.Name)
	case errors.As(err, &operation) && operation.Op == "dial":
		address := "the server"
		if operation.Addr != nil {
			address = operation.Addr.String()
		}
		if errors.As(err, &number) {
			return fmt.Sprintf("cannot connect to %s (%v)", address, number)
		}
		return "cannot connect to " + address
	case errors.Is(err, errStalled):
		return errStalled.Error()
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed), errors.As(err, &number):
		return "the connection broke"
	}
	var slow interface{ Timeout() bool }
	if errors.As(err, &slow) && slow.Timeout() || errors.Is(err, context.DeadlineExceeded) {
		return "the server does not answer in time"
	}
	return "the transfer failed"
}

var errStalled = fmt.Errorf("the server has sent no byte for %v", stallTimeout)

// body returns the bytes of an answer. Its Read returns an Error if the connection breaks, stalls,
// or ends before length bytes; a length of -1 is unknown. cancel must end the request.
func body(ctx context.Context, cancel context.CancelCauseFunc, src storage.Source, rc io.ReadCloser, length int64) io.ReadCloser {
	b := &checkedBody{ctx: ctx, cancel: cancel, src: src, rc: rc, want: length}
	b.stall = time.AfterFunc(stallTimeout, func() {
		b.stalled.Store(true)
		cancel(errStalled)
	})
	b.stall.Stop()
	return b
}

type checkedBody struct {
	ctx       context.Context // of the caller
	cancel    context.CancelCauseFunc
	src       storage.Source
	rc        io.ReadCloser
	stall     *time.Timer // runs while Read waits
	stalled   atomic.Bool
	got, want int64
	closing   sync.Once
}

func (b *checkedBody) Read(p []byte) (int, error) {
	b.stall.Reset(stallTimeout)
	n, err := b.rc.Read(p)
	b.stall.Stop()
	b.got += int64(n)
	switch {
	case err == nil:
		return n, nil
	case errors.Is(err, io.EOF) && (b.want < 0 || b.got == b.want):
		return n, io.EOF
	case errors.Is(err, io.EOF):
		err = failure(b.src, Busy, "the connection ended after %d of %d bytes; the load is tried again", b.got, b.want)
	case b.stalled.Load():
		err = ofTransport(b.ctx, b.src, errStalled)
	default:
		err = ofTransport(b.ctx, b.src, err)
	}
	return n, err
}

func (b *checkedBody) Close() error {
	var err error
	b.closing.Do(func() {
		b.stall.Stop()
		b.cancel(context.Canceled)
		err = b.rc.Close()
	})
	return err
}

// seconds returns the pause that a Retry-After header names, rounded up; 0 if it names none, and at
// most an hour.
func seconds(header string, now time.Time) int {
	n, err := strconv.Atoi(strings.TrimSpace(header))
	if err != nil {
		at, err := http.ParseTime(header)
		if err != nil {
			return 0
		}
		n = int((at.Sub(now) + time.Second - 1) / time.Second)
	}
	return max(0, min(n, 3600))
}
