// Package apiserver runs a real Kubernetes API server: etcd and kube-apiserver as processes, built from their Go modules.
// Tests of what comes from Kubernetes stand on it, and so does the cluster of bench/cluster. Nothing else of Kubernetes
// runs here, so nobody schedules pods, runs them, or collects what lost its owner or its namespace: a test that patches the
// status of a Pod is the kubelet.
package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"

	"github.com/headgate/headgate/test/process"
)

const (
	// Port is where kube-apiserver serves, with TLS.
	Port     = "6443"
	etcdPort = "2379"
	peerPort = "2380"

	// ServiceRange is where the addresses of Services come from; Kubernetes' own has the first.
	ServiceRange   = "10.96.0.0/16"
	serviceAddress = "10.96.0.1"

	// startTimeout bounds the start of either program; about 5 s are usual.
	startTimeout = time.Minute
)

// everyRequest is the audit policy of those who name none: one line for each request, two for a watch, without bodies.
const everyRequest = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
`

// Config is what a Server runs, and where.
type Config struct {
	// Binaries is the folder that Build returned.
	Binaries string
	// Dir holds the data, keys and logs of this run; it is made if it is missing.
	Dir string
	// Address is an IP address of this machine at which nobody else serves on Port. One of 127/8 needs no set-up.
	Address string
	// Etcd is the loopback address of etcd, Address by default. Who reaches etcd reads and writes everything.
	Etcd string
	// Names are more names and addresses by which callers may know the server.
	Names []string
	// AuditPolicy is a Policy of audit.k8s.io/v1; by default, every request is a line with its metadata.
	AuditPolicy string
	// Flags of kube-apiserver go before these.
	Flags []string
}

// Server is an etcd and a kube-apiserver. Its methods are not safe for concurrent use, but for those that make clients.
type Server struct {
	Config
	// AuditLog is the file of what was asked.
	AuditLog string

	authority  *authority
	admin      *rest.Config
	starter    process.Starter
	etcd, kube *process.Process
}

// Start starts both and returns when requests are answered. The caller closes the server.
func Start(ctx context.Context, c Config) (*Server, error) {
	if c.Etcd == "" {
		c.Etcd = c.Address
	}
	if c.AuditPolicy == "" {
		c.AuditPolicy = everyRequest
	}
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return nil, err
	}
	c.Dir = dir
	s := &Server{Config: c, AuditLog: filepath.Join(dir, "audit.log"), starter: process.NewStarter()}
	for _, start := range []func(context.Context) error{s.prepare, s.startEtcd, s.startKube} {
		if err := start(ctx); err != nil {
			s.Close()
			return nil, err
		}
	}
	return s, nil
}

// prepare writes the files that the programs read.
func (s *Server) prepare(context.Context) (err error) {
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return err
	}
	if s.authority, err = newAuthority(); err != nil {
		return err
	}
	names := append([]string{s.Address, serviceAddress, "kubernetes", "kubernetes.default", "kubernetes.default.svc"}, s.Names...)
	own, err := s.authority.server(names...)
	if err != nil {
		return err
	}
	key, err := accountsKey()
	if err != nil {
		return err
	}
	kubelets, err := s.authority.client("kube-apiserver", []string{"system:masters"})
	if err != nil {
		return err
	}
	if s.admin, err = s.User("admin", "system:masters"); err != nil {
		return err
	}
	return writeAll(map[string][]byte{
		s.AuthorityFile(): s.authority.pem, s.AccountsKeyFile(): key,
		s.file("kubelets.crt"): kubelets.certificate, s.file("kubelets.key"): kubelets.key,
		s.file("server.crt"): own.certificate, s.file("server.key"): own.key, s.file("audit.yaml"): []byte(s.AuditPolicy),
	})
}

func (s *Server) file(name string) string { return filepath.Join(s.Dir, name) }

// AuthorityFile has the certificate that signed the server's own and those of all clients.
func (s *Server) AuthorityFile() string { return s.file("ca.crt") }

// AccountsKeyFile has the key that signs the tokens of service accounts.
func (s *Server) AccountsKeyFile() string { return s.file("accounts.key") }

func (s *Server) startEtcd(ctx context.Context) (err error) {
	clients, peers := "http://"+net.JoinHostPort(s.Etcd, etcdPort), "http://"+net.JoinHostPort(s.Etcd, peerPort)
	// What a run stores ends with it, so that nothing is worth the wait for the disk.
	s.etcd, err = s.starter.Start("etcd", s.Dir, exec.Command(filepath.Join(s.Binaries, "etcd"), "--unsafe-no-fsync",
		"--data-dir", s.file("etcd"), "--listen-client-urls", clients, "--advertise-client-urls", clients,
		"--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", "default="+peers,
		"--quota-backend-bytes", "8589934592"))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return s.etcd.AwaitOK(ctx, clients+"/health")
}

func (s *Server) startKube(ctx context.Context) (err error) {
	flags := []string{
		"--etcd-servers", "http://" + net.JoinHostPort(s.Etcd, etcdPort),
		"--bind-address", s.Address, "--secure-port", Port, "--advertise-address", s.Address,
		"--tls-cert-file", s.file("server.crt"), "--tls-private-key-file", s.file("server.key"), "--cert-dir", s.Dir,
		"--client-ca-file", s.AuthorityFile(), "--authorization-mode", "Node,RBAC",
		"--service-cluster-ip-range", ServiceRange,
		"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", s.AccountsKeyFile(),
		"--service-account-signing-key-file", s.AccountsKeyFile(),
		"--kubelet-client-certificate", s.file("kubelets.crt"), "--kubelet-client-key", s.file("kubelets.key"),
		"--kubelet-preferred-address-types", "InternalIP",
		"--audit-policy-file", s.file("audit.yaml"), "--audit-log-path", s.AuditLog, "--audit-log-maxsize", "1024",
		"--profiling=false",
	}
	if ip := net.ParseIP(s.Address); ip != nil && ip.IsLoopback() {
		// Else it tries each ten seconds to make itself an endpoint, which Kubernetes refuses at a loopback address.
		flags = append(flags, "--endpoint-reconciler-type", "none")
	}
	s.kube, err = s.starter.Start("kube-apiserver", s.Dir, exec.Command(filepath.Join(s.Binaries, "kube-apiserver"), append(flags, s.Flags...)...))
	if err != nil {
		return err
	}
	client, err := rest.HTTPClientFor(s.admin)
	if err != nil {
		return err
	}
	client.Timeout = time.Second
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return s.kube.AwaitAnswer(ctx, client, s.admin.Host+"/readyz")
}

// Outage ends kube-apiserver at once. What it stored stays.
func (s *Server) Outage() { s.kube.Kill() }

// Restart starts kube-apiserver again at its address, after it was ended where it runs, and returns when it answers.
func (s *Server) Restart(ctx context.Context) error {
	s.kube.Kill()
	return s.startKube(ctx)
}

// Done is closed when kube-apiserver has ended; the next one has another.
func (s *Server) Done() <-chan struct{} { return s.kube.Done() }

// PIDs are the process ids of etcd and of kube-apiserver.
func (s *Server) PIDs() (etcd, kube int) { return s.etcd.PID(), s.kube.PID() }

// Close ends both, and may be called again. Files stay.
func (s *Server) Close() {
	for _, p := range []*process.Process{s.kube, s.etcd} {
		if p != nil {
			p.Kill()
		}
	}
	if s.starter != nil {
		close(s.starter)
		s.starter = nil
	}
}

// free is an error if something serves at an address of the server.
func free(address string) error {
	var errs []error
	for _, port := range []string{Port, etcdPort, peerPort} {
		l, err := net.Listen("tcp", net.JoinHostPort(address, port))
		if err != nil {
			errs = append(errs, fmt.Errorf("the address %s cannot be had: %w", net.JoinHostPort(address, port), err))
			continue
		}
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}
