package kinds

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/headgate/headgate/internal/objects"
)

// Secrets is the table of what a Network has of folders alone, for who serves with the certificates in them. API servers are not asked
// for the kind: there each Secret is read by its name. A folder that is read without this table may have Secrets all the same, which
// are passed over. Each call returns another slice.
func Secrets() []Kind {
	return []Kind{
		Of(Row[corev1.Secret, objects.KeyPair]{
			Resource: corev1.SchemeGroupVersion.WithResource("secrets"), Kind: objects.SecretKind,
			FolderOnly: true,
			Folder:     keyPairOf,
			Net:        func(n *objects.Network) *[]objects.KeyPair { return &n.KeyPairs },
		}),
	}
}

// keyPairOf is what Headgate takes of a Secret, and what is wrong with it. What is in the certificate is for who serves with it to
// say. No fault quotes data.
func keyPairOf(s *corev1.Secret) (objects.KeyPair, field.ErrorList) {
	faults := objects.CheckName(s.Name)
	data := keyPairData(s)
	if s.Type == corev1.SecretTypeTLS {
		for _, key := range []string{objects.CertificateKey, objects.PrivateKeyKey} {
			if _, there := data[key]; !there { // as an API server says it
				faults = append(faults, field.Required(field.NewPath("data").Key(key), "a Secret of type "+string(s.Type)+" has it"))
			}
		}
	}
	return objects.KeyPair{
		Name:        objects.Name{Namespace: s.Namespace, Name: s.Name},
		Certificate: data[objects.CertificateKey], Key: data[objects.PrivateKeyKey],
	}, faults
}

// keyPairData is what of a Secret's data is read. What is written as it is, in stringData, counts before data, as it does to an API
// server.
func keyPairData(s *corev1.Secret) map[string][]byte {
	data := maps.Clone(s.Data)
	if data == nil {
		data = make(map[string][]byte)
	}
	for key, text := range s.StringData {
		data[key] = []byte(text)
	}
	maps.DeleteFunc(data, func(key string, _ []byte) bool { return key != objects.CertificateKey && key != objects.PrivateKeyKey })
	return data
}
