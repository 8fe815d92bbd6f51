package pods

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/control/attach/pki"
)

// GatewaysName is the name of the Secret with the certificate authority of the controls, by which
// Envoys of Gateways and controls authenticate each other.
const GatewaysName = "headgate-gateways"

// Authority returns the certificate authority of Gateways, and creates it if there is none. It
// waits while the API server does not answer. It needs the verb create of secrets, and get of
// [GatewaysName].
func (p Pod) Authority(ctx context.Context) (*pki.Authority, error) {
	return retry(ctx, p.authority, func(err error) {
		p.Log.Warn("cannot read or write the Secret with the authority for Gateways' Envoys; retrying", "secret", p.Namespace+"/"+
			GatewaysName, "err", err)
	})
}

func (p Pod) authority(ctx context.Context) (*pki.Authority, error) {
	ctx, cancel := context.WithTimeout(ctx, announceInterval)
	defer cancel()
	secrets := p.Client.CoreV1().Secrets(p.Namespace)
	is, err := secrets.Get(ctx, GatewaysName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		made, err := pki.New(time.Now())
		if err != nil {
			return nil, err
		}
		certificate, key, err := made.PEM()
		if err != nil {
			return nil, err
		}
		_, err = secrets.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: GatewaysName}, Type: corev1.SecretTypeTLS,
			Data: map[string][]byte{corev1.TLSCertKey: certificate, corev1.TLSPrivateKeyKey: key},
		}, metav1.CreateOptions{})
		if err == nil {
			return made, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return nil, err
		}
		is, err = secrets.Get(ctx, GatewaysName, metav1.GetOptions{}) // another control has created it meanwhile
		if err != nil {
			return nil, err
		}
	} else if err != nil {
		return nil, err
	}
	a, err := pki.Read(is.Data[corev1.TLSCertKey], is.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return nil, fmt.Errorf("%w: delete it, and control makes another", err)
	}
	return a, nil
}
