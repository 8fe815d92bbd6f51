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

// What the Secret has beside a certificate and its key: the authority that callers trust, the token that extprocs send, and the
// one that clients of ModelMesh do.
const (
	AuthorityKey = "ca.crt"
	TokenKey     = "token"
	MeshTokenKey = "mesh-token"
)

// credentialsAge is how long what controls make for themselves is valid. To replace it, delete the Secret and restart the
// Deployments.
const credentialsAge = 10 * 366 * 24 * time.Hour

// Credentials writes into a folder what the Secret of placement has, and returns the files of the tokens of extprocs and of clients of
// ModelMesh, which is empty where these have none. Where there is no Secret it is made, and one that was made before they had a token of
// their own gets that, where this pod may write it. While the API server does not answer it waits.
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

// until calls again and again, until that does not fail or ctx ends, which is the only error. The first failure is told.
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

// secret returns the Secret of placement with all that it should have.
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
		if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) { // its Role is older, or the Secret is immutable
			p.Log.Warn("cannot add a token to the Secret; serving clients of ModelMesh on loopback only", "secret", p.name(), "key", MeshTokenKey, "err", err)
			return is, nil
		}
		if !apierrors.IsConflict(err) {
			return written, err
		}
	}
	return secrets.Get(ctx, PlacementName, metav1.GetOptions{}) // another control has written it meanwhile
}

// keep writes what a control serves with into a folder.
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

// newSecret makes a certificate that is its own authority, and tokens.
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
		_ = pem.Encode(&text, &pem.Block{Type: kind, Bytes: der}) // a buffer takes all
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
