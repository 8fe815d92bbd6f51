package apiserver

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/headgate/headgate/internal/process"
)

// buildTimeout is the maximum time to build etcd and kube-apiserver.
const buildTimeout = 30 * time.Minute

// Run starts an API server with flags of kube-apiserver, and closes it when the test ends. If the
// package calls [Main] and there are no flags, the test gets the server that the tests share. The
// first call builds the programs. Run skips the test in short mode.
func Run(t testing.TB, flags ...string) *Server {
	t.Helper()
	return run(t, bare, flags)
}

// run returns a server at a stage, with flags of kube-apiserver.
func run(t testing.TB, at stage, flags []string) *Server {
	t.Helper()
	skipShort(t)
	if len(flags) == 0 && shared.on {
		return shared.take(t, at)
	}
	s := RunWith(t, Config{Flags: flags})
	for next := withCRDs; next <= at; next++ {
		if err := next.next(t, s); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// RunWith starts an API server and closes it when the test ends. Binaries, Dir and Address may be
// empty: then it chooses them.
func RunWith(t testing.TB, c Config) *Server {
	t.Helper()
	skipShort(t)
	if c.Dir == "" {
		c.Dir = t.TempDir()
	}
	s := start(t, c)
	t.Cleanup(func() {
		s.Close()
		if t.Failed() {
			t.Logf("kube-apiserver said last:\n%s", s.kube.LastWords())
		}
	})
	return s
}

// RunEtcd starts an empty etcd without an API server, and stops it when the test ends. It returns
// the URL for clients.
func RunEtcd(t testing.TB) (url string) {
	t.Helper()
	s := etcdOnly(t)
	if err := s.startEtcd(t.Context()); err != nil {
		t.Fatal(err)
	}
	return "http://" + net.JoinHostPort(s.Etcd, etcdPort)
}

// RunSecureEtcd is RunEtcd with TLS for clients with a certificate. The folder dir has the
// certificate of the authority, ca.crt, and a client's certificate and key, kubelets.crt and
// kubelets.key.
func RunSecureEtcd(t testing.TB) (url, dir string) {
	t.Helper()
	s := etcdOnly(t)
	if err := s.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	url = "https://" + net.JoinHostPort(s.Etcd, etcdPort)
	peers, health := "http://"+net.JoinHostPort(s.Etcd, peerPort), "http://"+net.JoinHostPort(s.Etcd, Port)
	var err error
	s.etcd, err = s.starter.Start("etcd", s.Dir, exec.Command(filepath.Join(s.Binaries, "etcd"), "--unsafe-no-fsync",
		"--data-dir", s.file("etcd"), "--listen-client-urls", url, "--advertise-client-urls", url,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "default="+peers,
		"--cert-file", s.file("server.crt"), "--key-file", s.file("server.key"), "--trusted-ca-file", s.AuthorityFile(),
		"--client-cert-auth", "--listen-metrics-urls", health))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	if err := s.etcd.AwaitOK(ctx, health+"/health"); err != nil {
		t.Fatal(err)
	}
	return url, s.Dir
}

// etcdOnly returns a Server without processes, of which only etcd is to be started. It is closed
// when the test ends.
func etcdOnly(t testing.TB) *Server {
	t.Helper()
	skipShort(t)
	root, err := Root(".")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), buildTimeout)
	defer cancel()
	binaries, err := Build(ctx, root, os.Stderr, "etcd")
	if err != nil {
		t.Fatal(err)
	}
	at := someAddress(t)
	s := &Server{
		Config:  Config{Binaries: binaries, Dir: t.TempDir(), Address: at, Etcd: at, AuditPolicy: everyRequest},
		starter: process.NewStarter(),
	}
	t.Cleanup(s.Close)
	return s
}

func skipShort(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("short runs start no API server")
	}
}

// start starts an API server, which the caller must close.
func start(t testing.TB, c Config) *Server {
	t.Helper()
	if c.Binaries == "" {
		root, err := Root(".")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), buildTimeout)
		defer cancel()
		if c.Binaries, err = Build(ctx, root, os.Stderr, "etcd", "kube-apiserver"); err != nil {
			t.Fatal(err)
		}
	}
	if c.Address == "" {
		c.Address = someAddress(t)
	}
	// This plugin requires service accounts, and no controller runs that would create them.
	c.Flags = append([]string{"--disable-admission-plugins", "ServiceAccount"}, c.Flags...)
	s, err := Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// someAddress returns a random loopback address whose ports are free, so that test runs can
// overlap.
func someAddress(t testing.TB) string {
	t.Helper()
	var err error
	for range 10 {
		address := fmt.Sprintf("127.%d.%d.%d", 192+rand.IntN(60), rand.IntN(256), 1+rand.IntN(254))
		if err = free(address); err == nil {
			return address
		}
	}
	t.Fatal(err)
	return ""
}

// KubeconfigFile writes a kubeconfig file for a program and returns its path. The file is deleted
// when the test ends.
func KubeconfigFile(t testing.TB, c *rest.Config) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "kubeconfig")
	text, err := Kubeconfig(c)
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}
