package pods

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/internal/listen"
)

// Keys of the Secret, in addition to its certificate and private key: the authority with which
// callers verify the certificate, the token of extprocs, and the token of ModelMesh's clients.
const (
	AuthorityKey = "ca.crt"
	TokenKey     = "token"
	MeshTokenKey = "mesh-token"
)

// credentialsAge is how long generated credentials are valid. To replace them, delete the Secret
// and restart the Deployments.
const credentialsAge = 10 * 366 * 24 * time.Hour

// Credentials writes the content of placement's Secret into a folder. It returns the token files of
// extprocs and of ModelMesh's clients; mesh may be empty. It creates the Secret if it is missing.
// If only the token for ModelMesh's clients is missing, it adds one if RBAC allows that. It waits
// while the API server does not answer.
func (p Pod) Credentials(ctx context.Context, dir string) (extprocs, mesh string, err error) {
	secret, err := retry(ctx, p.secret, func(err error) {
		p.Log.Warn("cannot read or write the Secret that extprocs need to call this control; retrying", "secret", p.name(), "err", err)
	})
	if err != nil {
		return "", "", err
	}
	if len(secret.Data[MeshTokenKey]) > 0 {
		mesh = filepath.Join(dir, MeshTokenKey)
	}
	return filepath.Join(dir, TokenKey), mesh, p.keep(secret, dir)
}

// retry repeats a call until it succeeds or ctx ends. The only error is that of ctx. It calls tell
// with the first failure.
func retry[T any](ctx context.Context, call func(context.Context) (T, error), tell func(error)) (none T, _ error) {
	for failing := false; ; failing = true {
		got, err := call(ctx)
		if err == nil {
			return got, nil
		}
		if !failing {
			tell(err)
		}
		timer := time.NewTimer(retryInterval)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return none, ctx.Err()
		}
	}
}

func (p Pod) name() string { return p.Namespace + "/" + PlacementName }

// secret returns the Secret of placement. It first creates the Secret or adds a token if necessary.
func (p Pod) secret(ctx context.Context) (*corev1.Secret, error) {
	ctx, cancel := context.WithTimeout(ctx, announceInterval)
	defer cancel()
	secrets := p.Client.CoreV1().Secrets(p.Namespace)
	is, err := secrets.Get(ctx, PlacementName, metav1.GetOptions{})
	var written *corev1.Secret
	switch {
	case apierrors.IsNotFound(err):
		made, err := p.newSecret(time.Now())
		if err != nil {
			return nil, err
		}
		written, err = secrets.Create(ctx, made, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			return written, err
		}
	case err != nil || len(is.Data[MeshTokenKey]) > 0 || len(is.Data) == 0:
		return is, err
	default:
		wants := is.DeepCopy()
		wants.Data[MeshTokenKey] = []byte(rand.Text())
		written, err = secrets.Update(ctx, wants, metav1.UpdateOptions{})
		if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) { // an older Role, or an immutable Secret
			p.Log.Warn("cannot add a token to the Secret; serving clients of ModelMesh on loopback only", "secret", p.name(), "key",
				MeshTokenKey, "err", err)
			return is, nil
		}
		if !apierrors.IsConflict(err) {
			return written, err
		}
	}
	return secrets.Get(ctx, PlacementName, metav1.GetOptions{}) // another control has written it meanwhile
}

// keep writes the certificate, private key and tokens of a Secret as files into a folder.
func (p Pod) keep(secret *corev1.Secret, dir string) error {
	for _, key := range []string{AuthorityKey, corev1.TLSCertKey, corev1.TLSPrivateKeyKey, TokenKey, MeshTokenKey} {
		if len(secret.Data[key]) == 0 && key != MeshTokenKey {
			return fmt.Errorf("there is no %s in Secret %s: delete it, and control makes another", key, p.name())
		}
		if err := os.WriteFile(filepath.Join(dir, key), secret.Data[key], 0o600); err != nil {
			return err
		}
	}
	return nil
}

// newSecret returns a Secret with a new self-signed certificate and new tokens.
func (p Pod) newSecret(now time.Time) (*corev1.Secret, error) {
	service := PlacementName + "." + p.Namespace
	made, err := listen.Certify(now, credentialsAge, true, PlacementName, service, service+".svc", service+".svc.cluster.local")
	if err != nil {
		return nil, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(made.PrivateKey)
	if err != nil {
		return nil, err
	}
	encode := func(kind string, der []byte) []byte {
		var text bytes.Buffer
		_ = pem.Encode(&text, &pem.Block{Type: kind, Bytes: der}) // a write to a buffer does not fail
		return text.Bytes()
	}
	certificate := encode("CERTIFICATE", made.Certificate[0])
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: PlacementName},
		Data: map[string][]byte{
			AuthorityKey: certificate, corev1.TLSCertKey: certificate, corev1.TLSPrivateKeyKey: encode("PRIVATE KEY", secret),
			TokenKey: []byte(rand.Text()), MeshTokenKey: []byte(rand.Text()),
		},
	}, nil
}
