// Package apiserver runs a real Kubernetes API server: etcd and kube-apiserver as processes, built
// from their Go modules. It is for tests of code that uses Kubernetes and for the cluster of
// bench/cluster. No other component of Kubernetes runs: there is no scheduler, no kubelet and no
// garbage collection. A test that patches the status of a Pod acts as the kubelet.
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

	"github.com/headgate/headgate/internal/process"
)

const (
	// Port is the port of kube-apiserver, with TLS.
	Port     = "6443"
	etcdPort = "2379"
	peerPort = "2380"

	// ServiceRange is the address range of Services. The Service of the API server gets the first
	// address.
	ServiceRange   = "10.96.0.0/16"
	serviceAddress = "10.96.0.1"

	// startTimeout limits the start of each program, which usually takes 5 s.
	startTimeout = time.Minute
)

// everyRequest is the default audit policy. It logs one line for each request and two for a watch,
// without bodies.
const everyRequest = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
`

// Config is the configuration of a Server.
type Config struct {
	// Binaries is the folder that Build returned.
	Binaries string
	// Dir is the folder for data, keys and logs. It is created if it is missing.
	Dir string
	// Address is an IP address of this machine. Port must be free there. Addresses in 127/8 need no
	// set-up.
	Address string
	// Etcd is the loopback address of etcd; empty means Address. It has no authentication: every
	// process that reaches it can read and write all data.
	Etcd string
	// Names are additional host names and addresses for the server's certificate.
	Names []string
	// AuditPolicy is a Policy of audit.k8s.io/v1. If it is empty, every request is logged with its
	// metadata.
	AuditPolicy string
	// Flags are flags of kube-apiserver. They override the defaults of this package.
	Flags []string
}

// Server is a running etcd and kube-apiserver. Only the methods that return client configurations
// are safe for concurrent use.
type Server struct {
	Config
	// AuditLog is the path of the audit log.
	AuditLog string

	authority  *authority
	admin      *rest.Config
	starter    process.Starter
	etcd, kube *process.Process
}

// Start starts etcd and kube-apiserver, and returns when the API server is ready. The caller must
// close the Server.
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

// prepare writes certificates, keys and the audit policy.
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

// AuthorityFile returns the path of the CA certificate. The CA signs the certificates of the server
// and of all clients.
func (s *Server) AuthorityFile() string { return s.file("ca.crt") }

// AccountsKeyFile returns the path of the key that signs tokens of service accounts.
func (s *Server) AccountsKeyFile() string { return s.file("accounts.key") }

func (s *Server) startEtcd(ctx context.Context) (err error) {
	clients, peers := "http://"+net.JoinHostPort(s.Etcd, etcdPort), "http://"+net.JoinHostPort(s.Etcd, peerPort)
	// etcd need not sync data to disk, because the data are deleted after the run.
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
		// Without this flag, kube-apiserver tries every ten seconds to register itself as an
		// endpoint. Kubernetes rejects that for a loopback address.
		flags = append(flags, "--endpoint-reconciler-type", "none")
	}
	s.kube, err = s.starter.Start("kube-apiserver", s.Dir,
		exec.Command(filepath.Join(s.Binaries, "kube-apiserver"), append(flags, s.Flags...)...))
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

// Outage kills kube-apiserver. Its data stay in etcd.
func (s *Server) Outage() { s.kube.Kill() }

// Restart kills kube-apiserver if it still runs, and starts it again at its address. It returns
// when the server is ready.
func (s *Server) Restart(ctx context.Context) error {
	s.kube.Kill()
	return s.startKube(ctx)
}

// Done returns a channel that is closed when the current kube-apiserver process has ended.
func (s *Server) Done() <-chan struct{} { return s.kube.Done() }

// PIDs returns the process ids of etcd and kube-apiserver.
func (s *Server) PIDs() (etcd, kube int) { return s.etcd.PID(), s.kube.PID() }

// Close kills both programs and keeps their files. It may be called again.
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

// free returns an error if one of the server's ports is in use at an address.
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
