package dir

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/objects/kinds"
)

const goodSecret = `apiVersion: v1
kind: Secret
metadata: {name: cert, namespace: ns}
type: kubernetes.io/tls
data:
  tls.crt: Y2VydGlmaWNhdGU=
  tls.key: a2V5
`

// served are the tables of a program that serves with certificates, passing those of one that does
// not.
var (
	served  = slices.Concat(kinds.WithNetwork(), kinds.ByName())
	passing = [][]kinds.Kind{kinds.All(), withNetwork}
)

// stringData takes precedence over data, as in an API server, and data other than the certificate
// and key is not kept.
func TestSecretOfAFolder(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"in base64", goodSecret, "ns/cert certificate key"},
		{"of any type", strings.Replace(goodSecret, "kubernetes.io/tls", "Opaque", 1), "ns/cert certificate key"},
		{"of no type", strings.Replace(goodSecret, "type: kubernetes.io/tls\n", "", 1), "ns/cert certificate key"},
		{"in no namespace", strings.Replace(goodSecret, ", namespace: ns", "", 1), "default/cert certificate key"},
		{"as it is", strings.Replace(goodSecret, "data:\n  tls.crt: Y2VydGlmaWNhdGU=\n  tls.key: a2V5",
			"stringData: {tls.crt: mine, tls.key: also mine}", 1), "ns/cert mine also mine"},
		{"both ways", goodSecret + "stringData: {tls.key: the other}\n", "ns/cert certificate the other"},
		{"with more beside it", goodSecret + "  ca.crt: b3RoZXI=\n", "ns/cert certificate key"},
		{"with nothing of a certificate", strings.NewReplacer("kubernetes.io/tls", "Opaque", "tls.crt", "token", "tls.key",
			"other").Replace(goodSecret), "ns/cert  "},
		{
			"in a list", "apiVersion: v1\nkind: List\nitems:\n- " + strings.ReplaceAll(strings.TrimSpace(goodSecret), "\n", "\n  ") + "\n",
			"ns/cert certificate key",
		},
		{
			"of two namespaces", goodSecret + "---\n" +
				strings.NewReplacer("namespace: ns", "namespace: other", "a2V5", "aGlz").Replace(goodSecret),
			"ns/cert certificate key, other/cert certificate his",
		},
	} {
		read, err := parse("f.yaml", []byte(c.text), served)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		var all []string
		for _, k := range read.set.Network.KeyPairs {
			all = append(all, fmt.Sprintf("%s %s %s", k.Name, k.Certificate, []byte(k.Key)))
		}
		if got := strings.Join(all, ", "); got != c.want {
			t.Errorf("%s it is %q, want %q", c.name, got, c.want)
		}
	}
}

func TestErrorsOfSecretsHaveNoData(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{
			"base64", strings.Replace(goodSecret, "a2V5", "hidden!", 1),
			"f.yaml:7: data[tls.key] is not base64: put plain text under stringData",
		},
		{
			"base64 in a list", "apiVersion: v1\nkind: List\nitems:\n- " +
				strings.ReplaceAll(strings.TrimSpace(strings.Replace(goodSecret, "a2V5", "hidden!", 1)), "\n", "\n  ") + "\n",
			"f.yaml:10: data[tls.key] is not base64: put plain text under stringData",
		},
		{
			"no key", strings.Replace(goodSecret, "  tls.key: a2V5\n", "", 1),
			"f.yaml:5: Secret ns/cert: data[tls.key]: Required value: a Secret of type kubernetes.io/tls has it",
		},
		{
			"no name", strings.Replace(goodSecret, "name: cert, ", "", 1),
			"f.yaml:3: Secret ns/: metadata.name: Required value: give the object a name",
		},
		{"no text", goodSecret + "stringData: {tls.key: [hidden]}\n", "f.yaml:8: stringData: want a string, not array"},
		{"twice", goodSecret + "---\n" + goodSecret, "f.yaml:11: Secret ns/cert is defined twice, first at line 3"},
	} {
		_, err := parse("f.yaml", []byte(c.text), served)
		if err == nil || err.Error() != c.want {
			t.Errorf("%s: got  %v\nwant %s", c.name, err, c.want)
		}
	}
}

// Several programs read a folder: those that serve with no certificate neither validate nor keep
// Secrets.
func TestSecretsAreSkippedIfUnneeded(t *testing.T) {
	for _, table := range passing {
		for _, text := range []string{goodSecret, strings.Replace(goodSecret, "a2V5", "none!", 1)} {
			without, err := parse("f.yaml", []byte(goodPool+"---\n"), table)
			if err != nil {
				t.Fatal(err)
			}
			with, err := parse("f.yaml", []byte(goodPool+"---\n"+text), table)
			if err != nil || !reflect.DeepEqual(with.set, without.set) || len(with.as) != 1 || len(with.notes) > 0 {
				t.Errorf("of a file with a Secret there is %+v, %v", with, err)
			}
		}
	}
}

func TestPathIsWalkedInSteps(t *testing.T) {
	for path, want := range map[string][]string{
		"": nil, "a.b[0].c": {"a", "b", "0", "c"}, "data[tls.crt]": {"data", "tls.crt"},
		"items[2].data[a.b].c": {"items", "2", "data", "a.b", "c"},
	} {
		if got := steps(path); !slices.Equal(got, want) {
			t.Errorf("%s is walked in %q", path, got)
		}
	}
}
