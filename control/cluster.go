package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/headgate/headgate/internal/listen"
	"github.com/headgate/headgate/internal/objects/kube"
)

// Objects that controls have in their own namespace.
const (
	// leaseName is of the Lease that the control holds that decides.
	leaseName = "headgate-control"
	// placementName is of the Service that extprocs call, of the EndpointSlice that makes it lead to the control that
	// decides, and of the Secret with what makes the two sure of each other.
	placementName = "headgate-placement"
)

const (
	// authorityKey and tokenKey are what the Secret has beside a certificate and its key.
	authorityKey, tokenKey = "ca.crt", "token"
	// announceInterval is how often the control that decides looks whether the Service leads to it.
	announceInterval = 10 * time.Second
	// announceRetry is after which it tries again where that failed.
	announceRetry = time.Second
	// statusRetry is after which the status of routes is tried again.
	statusRetry = 2 * time.Second
	// credentialsAge is how long what controls make for themselves is valid. To replace it, delete the Secret and restart
	// the Deployments.
	credentialsAge = 10 * 366 * 24 * time.Hour
)

// cluster is a control's own place in a cluster.
//
// It needs, in its own namespace: leases and secrets create, endpointslices create; and of those of the names above leases
// and endpointslices get and update, secrets get.
type cluster struct {
	client    kubernetes.Interface
	writer    client.Client // of status
	namespace string
	pod       string     // its name
	address   netip.Addr // of the pod
	log       *slog.Logger
}

// join makes a control one of its cluster's: with the certificate and the token that all of them have, if that is asked for.
func (o *office) join(ctx context.Context) error {
	config, err := kube.Connect(o.kube.Config)
	if err != nil {
		return err
	}
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("the API server: %w", err)
	}
	writer, err := kube.Client(config)
	if err != nil {
		return err
	}
	pod := objectName(o.pod)
	c := &cluster{client: core, writer: writer, namespace: pod.Namespace, pod: pod.Name, log: o.log}
	if o.podIP != "" {
		c.address = netip.MustParseAddr(o.podIP) // it was checked
	}
	if o.credentials != "" {
		if err := c.credentials(ctx, o.credentials); err != nil {
			return fmt.Errorf("--credentials-dir: %w", err)
		}
		o.certPath, o.tokenFile = o.credentials, filepath.Join(o.credentials, tokenKey)
	}
	o.cluster = c
	o.open = func(ctx context.Context, decides func() bool) (memory, error) {
		return kube.OpenMemory(ctx, c.writer, o.kube.Namespace, o.log, decides)
	}
	return nil
}

// serve does for the cluster what the control does that decides, until ctx ends: it leads extprocs here once there is
// something to say, and tells of routes in their status.
func (c cluster) serve(ctx context.Context, o office, loaded <-chan struct{}, decides func() bool) error {
	select {
	case <-loaded:
	case <-ctx.Done():
		return nil
	}
	var led sync.WaitGroup
	defer led.Wait()
	if port := o.port(); port != 0 && c.address.IsValid() {
		led.Go(func() { c.announce(ctx, port, decides) })
	}
	status := kube.NewStatus(c.writer, o.kube.Namespace)
	retry := time.NewTicker(statusRetry)
	defer retry.Stop()
	for told := false; ; {
		world, newer := o.worlds.get()
		failed := false
		if decides() {
			if err := status.Write(ctx, world); err != nil && ctx.Err() == nil {
				if failed = true; !told {
					c.log.Warn("the status of routes cannot be written; it is tried again", "err", err)
				}
			}
		}
		told = failed
		if !failed && decides() {
			retry.Stop()
		} else {
			retry.Reset(statusRetry)
		}
		select {
		case <-newer:
		case <-retry.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// port is the one that others can reach.
func (c config) port() uint16 {
	for _, address := range c.listen {
		if _, text, err := net.SplitHostPort(address); err == nil && !strings.HasPrefix(address, "unix:") {
			if port, err := strconv.ParseUint(text, 10, 16); err == nil {
				return uint16(port)
			}
		}
	}
	return 0
}

func (c cluster) election() election {
	return election{
		lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: leaseName}, Client: c.client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: c.pod},
		},
		duration: leaseDuration, deadline: renewDeadline, retry: retryPeriod, log: c.log,
	}
}

// announce makes the Service of placement lead to this control's port, and sees to it that it does while this control
// decides, until ctx ends.
func (c cluster) announce(ctx context.Context, port uint16, decides func() bool) {
	for told := false; ; {
		pause := announceInterval
		if !decides() {
			pause = announceRetry
		} else if err := c.lead(ctx, port); err != nil && ctx.Err() == nil {
			pause = announceRetry
			if !told {
				c.log.Warn("extprocs cannot be led to this control; it is tried again", "service", placementName, "err", err)
			}
			told = true
		} else {
			told = false
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

func (c cluster) lead(ctx context.Context, port uint16) error {
	ctx, cancel := context.WithTimeout(ctx, announceInterval) // what is lost on its way is not answered
	defer cancel()
	family, number, ready := discoveryv1.AddressTypeIPv4, int32(port), true
	if c.address.Is6() {
		family = discoveryv1.AddressTypeIPv6
	}
	want := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.namespace, Name: placementName,
			Labels: map[string]string{discoveryv1.LabelServiceName: placementName, discoveryv1.LabelManagedBy: "headgate-control"},
		},
		AddressType: family,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{c.address.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
		Ports:       []discoveryv1.EndpointPort{{Name: new("placement"), Port: &number}},
	}
	slices := c.client.DiscoveryV1().EndpointSlices(c.namespace)
	is, err := slices.Get(ctx, placementName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = slices.Create(ctx, want, metav1.CreateOptions{})
		return err
	case err != nil:
		return err
	case len(is.Endpoints) == 1 && reflect.DeepEqual(is.Endpoints[0].Addresses, want.Endpoints[0].Addresses) && len(is.Ports) == 1 && is.Ports[0].Port != nil && *is.Ports[0].Port == number:
		return nil
	}
	want.ResourceVersion = is.ResourceVersion
	_, err = slices.Update(ctx, want, metav1.UpdateOptions{})
	return err
}

// credentials writes into a folder what the Secret of placement has: tls.crt and tls.key, which controls serve with and
// whose ca.crt extprocs trust, and the token that extprocs call with. Where there is no Secret it is made. While the API server
// does not answer it waits.
func (c cluster) credentials(ctx context.Context, dir string) error {
	for told := false; ; {
		secret, err := c.secret(ctx)
		if err == nil {
			return c.keep(secret, dir)
		}
		if !told {
			c.log.Warn("what extprocs need to be sure of this control cannot be had; it is tried again", "secret", c.namespace+"/"+placementName, "err", err)
		}
		told = true
		select {
		case <-time.After(announceRetry):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// secret returns the Secret of placement, and makes it if there is none.
func (c cluster) secret(ctx context.Context) (*corev1.Secret, error) {
	ctx, cancel := context.WithTimeout(ctx, announceInterval)
	defer cancel()
	secrets := c.client.CoreV1().Secrets(c.namespace)
	secret, err := secrets.Get(ctx, placementName, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return secret, err
	}
	made, err := c.newSecret(time.Now())
	if err != nil {
		return nil, err
	}
	secret, err = secrets.Create(ctx, made, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) { // another control made it
		return secrets.Get(ctx, placementName, metav1.GetOptions{})
	}
	return secret, err
}

// keep writes what a control serves with into a folder.
func (c cluster) keep(secret *corev1.Secret, dir string) error {
	for _, name := range []string{authorityKey, corev1.TLSCertKey, corev1.TLSPrivateKeyKey, tokenKey} {
		if len(secret.Data[name]) == 0 {
			return fmt.Errorf("secret %s/%s has no %s: delete it, and control makes another", c.namespace, placementName, name)
		}
		if err := os.WriteFile(filepath.Join(dir, name), secret.Data[name], 0o600); err != nil {
			return err
		}
	}
	return nil
}

// newSecret makes a certificate that is its own authority, and a token.
func (c cluster) newSecret(now time.Time) (*corev1.Secret, error) {
	service := placementName + "." + c.namespace
	made, err := listen.Certify(now, credentialsAge, true, placementName, service, service+".svc", service+".svc.cluster.local")
	if err != nil {
		return nil, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(made.PrivateKey)
	if err != nil {
		return nil, err
	}
	encode := func(kind string, der []byte) []byte {
		var text bytes.Buffer
		_ = pem.Encode(&text, &pem.Block{Type: kind, Bytes: der}) // a buffer takes all
		return text.Bytes()
	}
	certificate := encode("CERTIFICATE", made.Certificate[0])
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: placementName},
		Data: map[string][]byte{
			authorityKey: certificate, corev1.TLSCertKey: certificate, corev1.TLSPrivateKeyKey: encode("PRIVATE KEY", secret),
			tokenKey: []byte(rand.Text()),
		},
	}, nil
}
