package kinds

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/headgate/headgate/internal/objects"
)

// ByName is the table of what a Network has of folders alone, for who serves with the certificates in it. API servers are not asked for
// these kinds: there each object is read by its name. A folder that is read without this table may have them all the same; they are passed
// over. Each call returns another slice.
func ByName() []Kind {
	return []Kind{
		Of(Row[corev1.Secret, objects.KeyPair]{
			Resource: corev1.SchemeGroupVersion.WithResource("secrets"), Kind: objects.SecretKind,
			FolderOnly: true,
			Folder:     keyPairOf,
			Net:        func(n *objects.Network) *[]objects.KeyPair { return &n.KeyPairs },
		}),
		Of(Row[corev1.ConfigMap, objects.Authorities]{
			Resource: corev1.SchemeGroupVersion.WithResource("configmaps"), Kind: objects.ConfigMapKind,
			FolderOnly: true,
			Folder: func(m *corev1.ConfigMap) (objects.Authorities, field.ErrorList) {
				return objects.Authorities{
					Name:         objects.Name{Namespace: m.Namespace, Name: m.Name},
					Certificates: objects.ConfigData(m.Data, m.BinaryData)[objects.AuthorityKey],
				}, objects.CheckName(m.Name)
			},
			Net: func(n *objects.Network) *[]objects.Authorities { return &n.Authorities },
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
