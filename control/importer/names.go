package importer

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// objectName returns the name of the object of an id: the id, if an object can have that name, or
// else what of it is legal, with a hash of the id.
func objectName(id string) string {
	if len(validation.IsDNS1123Subdomain(id)) == 0 {
		return id
	}
	return legal(strings.ToLower(id), 200, "-", '-') + "-" + digest(id)
}

// labelName returns the Kubernetes label for a label of ModelMesh (MM_LABELS): the same word, if a
// label can have that name, or else what of it is legal, with a hash.
func labelName(word string) string {
	name := legal(word, 50, "-._", '.')
	if name != word {
		name += "-" + digest(word)
	}
	return labelPrefix + name
}

// labelPrefix is the prefix of the Kubernetes labels for those of ModelMesh.
const labelPrefix = "modelmesh.headgate.dev/"

// labelValue is the value of these labels.
const labelValue = "true"

// legal returns a text of letters, digits and the characters in also. It has at most most bytes,
// and begins and ends with a letter or digit. Every other character is replaced with instead.
func legal(text string, most int, also string, instead rune) string {
	text = strings.Map(func(r rune) rune {
		if isAlphanumeric(r) || strings.ContainsRune(also, r) {
			return r
		}
		return instead
	}, text)
	text = strings.TrimFunc(text[:min(len(text), most)], func(r rune) bool { return !isAlphanumeric(r) })
	if text == "" {
		return "x"
	}
	return text
}

func isAlphanumeric(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
}

// digest returns a short hash of a text.
func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:5])
}
