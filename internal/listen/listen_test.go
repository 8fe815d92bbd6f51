package listen_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/listen"
)

// The socket of a killed process is replaced by the next one. A socket that is being served, or a
// file that is not a socket, is not.
func TestSocketOfADeadProcessIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "made", "x.sock")
	l, err := listen.On("listen", "unix:"+path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := listen.On("listen", "unix:"+path); err == nil ||
		!strings.Contains(err.Error(), "--listen unix:"+path+": another process listens there: stop it or choose another path") {
		t.Errorf("where one serves: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if l, err = listen.On("listen", "unix:"+path); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listen.On("listen", "unix:"+path); err == nil || !strings.Contains(err.Error(), "the path is a file, not a socket: remove it or choose another path") {
		t.Errorf("at a file: %v", err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "mine" {
		t.Errorf("the file is %q, %v", text, err)
	}
}

// No other user can open a private socket, independent of the umask.
func TestPrivateSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "private")
	l, err := listen.Private("xds-address", "unix:"+path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("its mode is %v, %v", info.Mode(), err)
	}
	if _, err := listen.Private("xds-address", "unix:"+path); err == nil || !strings.HasPrefix(err.Error(), "--xds-address unix:") {
		t.Errorf("a second one: %v", err)
	}
}

// The socket is replaced atomically, and the connections of the earlier process continue. The end
// of that process leaves the socket alone.
func TestSocketIsReplacedAtomically(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.sock")
	first, err := listen.On("listen", "unix:"+path)
	if err != nil {
		t.Fatal(err)
	}
	dial := func() net.Conn {
		t.Helper()
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	said := func(l net.Listener, client net.Conn) string {
		t.Helper()
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, _ = client.Write([]byte("x"))
		b := make([]byte, 1)
		_, _ = conn.Read(b)
		return string(b)
	}
	before := dial()
	second, err := listen.Over("listen", "unix:"+path)
	if err != nil {
		t.Fatal(err)
	}
	after := dial()
	if said(first, before) != "x" || said(second, after) != "x" {
		t.Error("who had connected is not with the first, or who connects is not with the second")
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	if said(second, dial()) != "x" {
		t.Error("the end of the first ends the second")
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("there is more than the socket: %v, %v", entries, err)
	}
	_ = second.Close()
}

func TestUnusableAddressesAreReported(t *testing.T) {
	for address, want := range map[string]string{
		"unix:" + strings.Repeat("x", 104): "the path of a Unix socket has at most 103 bytes, this one has 104",
		"unix:/proc/nowhere/x.sock":        "--at unix:/proc/nowhere/x.sock: mkdir /proc/nowhere: ",
		"192.0.2.1:1":                      "--at 192.0.2.1:1: ",
		"x":                                "missing port in address",
	} {
		if l, err := listen.On("at", address); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v, want %s", address, l, err, want)
		}
	}
}

func TestLocalAddresses(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:1": true, "127.9.9.9:1": true, "[::1]:1": true, "0.0.0.0:1": false,
		"[::]:1": false, "10.0.0.1:1": false,
	} {
		a, err := net.ResolveTCPAddr("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if got := listen.IsLocal(a); got != want {
			t.Errorf("%s: %v", address, got)
		}
	}
	if !listen.IsLocal(&net.UnixAddr{Name: "x", Net: "unix"}) {
		t.Error("a socket is not")
	}
}

// pair writes a certificate into a folder and returns it.
func pair(t *testing.T, dir string) *x509.Certificate {
	t.Helper()
	made, err := listen.SelfSigned(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(made.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"tls.crt": {Type: "CERTIFICATE", Bytes: made.Certificate[0]}, "tls.key": {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cert, err := x509.ParseCertificate(made.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// shows reports whether a configuration presents a certificate.
func shows(t *testing.T, c *tls.Config, want *x509.Certificate) bool {
	t.Helper()
	got, err := c.GetCertificate(&tls.ClientHelloInfo{})
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Equal(got.Certificate[0], want.Raw)
}

func TestCertificateIsReadAgainWhenItChanges(t *testing.T) {
	dir := t.TempDir()
	first := pair(t, dir)
	var log bytes.Buffer
	c, err := listen.TLS(dir, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if !shows(t, c, first) {
		t.Error("it does not show the certificate that it was given")
	}
	second := pair(t, dir)
	later := time.Now().Add(time.Second) // file systems' times are coarse
	if err := os.Chtimes(filepath.Join(dir, "tls.crt"), later, later); err != nil {
		t.Fatal(err)
	}
	if !shows(t, c, second) {
		t.Error("it does not show the new one")
	}
	if err := os.WriteFile(filepath.Join(dir, "tls.key"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if !shows(t, c, second) || !strings.Contains(log.String(), "keeping the last good one") {
		t.Errorf("files that make no sense: %s", log.String())
	}
	if _, err := listen.TLS(t.TempDir(), slog.Default()); err == nil || !strings.Contains(err.Error(), "--cert-path: ") {
		t.Errorf("a folder without a certificate: %v", err)
	}
}

func TestSelfSignedCertificate(t *testing.T) {
	c, err := listen.TLS("", slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.GetCertificate(&tls.ClientHelloInfo{})
	if err != nil || len(got.Certificate) != 1 {
		t.Errorf("%v, %v", got, err)
	}
}
