package pods

import (
	"bytes"
	"context"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/control/attach/envoy"
	"github.com/headgate/headgate/control/pods/gateway"
	"github.com/headgate/headgate/internal/objects"
)

// The certificates of all Gateways are in one Secret. Each pod mounts only the certificate of its
// own Gateway. So control needs the right to read only one Secret, by name, instead of all Secrets.
// A Secret of at most 1 MiB has room for about 800 Gateways.

// identities returns the object names of the Gateways that have a certificate in the Secret.
func (k *reconciler) identities(ctx context.Context) (names []string, err error) {
	is, err := k.Client.CoreV1().Secrets(k.Namespace).Get(ctx, gateway.Secret, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	for key := range is.Data { // the authority has a certificate, but no key here
		if name, of := strings.CutSuffix(key, gateway.KeySuffix); of {
			names = append(names, name)
		}
	}
	return names, nil
}

// identify makes or renews the certificate of a Gateway.
func (k *reconciler) identify(ctx context.Context, of objects.Name, name string) error {
	return k.keepSecret(ctx, func(data map[string][]byte) (err error) {
		certificate, key := name+gateway.CertificateSuffix, name+gateway.KeySuffix
		if len(data[key]) > 0 && k.authority.Fresh(data[certificate], of, time.Now()) {
			return nil
		}
		data[certificate], data[key], err = k.authority.Gateway(of, time.Now())
		return err
	})
}

// forget removes the certificate of a Gateway.
func (k *reconciler) forget(ctx context.Context, name string) error {
	return k.keepSecret(ctx, func(data map[string][]byte) error {
		delete(data, name+gateway.CertificateSuffix)
		delete(data, name+gateway.KeySuffix)
		return nil
	})
}

// keepSecret applies change to the data of the Secret, and writes the Secret if it has changed.
func (k *reconciler) keepSecret(ctx context.Context, change func(data map[string][]byte) error) error {
	names, err := envoy.Identity(gateway.Folder)
	if err != nil {
		return err
	}
	all := k.Client.CoreV1().Secrets(k.Namespace)
	is, err := all.Get(ctx, gateway.Secret, metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return err
	}
	want := is.DeepCopy()
	if missing {
		want = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: gateway.Secret}}
	}
	if want.Data == nil {
		want.Data = make(map[string][]byte)
	}
	want.Data[envoy.AuthorityFile], want.Data[envoy.SecretFile] = k.authority.Certificate(), names
	if err := change(want.Data); err != nil {
		return err
	}
	switch {
	case missing:
		_, err = all.Create(ctx, want, metav1.CreateOptions{})
	case !maps.EqualFunc(want.Data, is.Data, bytes.Equal):
		_, err = all.Update(ctx, want, metav1.UpdateOptions{})
	}
	return err
}
