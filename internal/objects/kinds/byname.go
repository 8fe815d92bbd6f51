package kinds

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/headgate/headgate/internal/objects"
)

// ByName is the table of a Network's kinds that are read only from folders, for programs that serve
// with the certificates in them. In an API server such objects are read one by one by name. Folders
// may have these kinds even for a program without this table, which skips them. Each call returns a
// new slice.
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

// keyPairOf converts a Secret and returns what is invalid in it. The certificate itself is
// validated by its user. No error quotes data.
func keyPairOf(s *corev1.Secret) (objects.KeyPair, field.ErrorList) {
	faults := objects.CheckName(s.Name)
	data := keyPairData(s)
	if s.Type == corev1.SecretTypeTLS {
		for _, key := range []string{objects.CertificateKey, objects.PrivateKeyKey} {
			if _, there := data[key]; !there { // the message of an API server
				faults = append(faults, field.Required(field.NewPath("data").Key(key), "a Secret of type "+string(s.Type)+" has it"))
			}
		}
	}
	return objects.KeyPair{
		Name:        objects.Name{Namespace: s.Namespace, Name: s.Name},
		Certificate: data[objects.CertificateKey], Key: data[objects.PrivateKeyKey],
	}, faults
}

// keyPairData returns the relevant data of a Secret. stringData takes precedence over data, as in
// an API server.
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
