package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// version is the name of a release, such as v0.1.0 or v0.2.0-rc.1.
type version struct {
	core string // 0.1.0
	pre  string // alpha, beta or rc; empty if the release is not a pre-release
	n    string // the number of the pre-release
}

var versionName = regexp.MustCompile(`^v((?:0|[1-9][0-9]*)\.(?:0|[1-9][0-9]*)\.(?:0|[1-9][0-9]*))(?:-(alpha|beta|rc)\.(0|[1-9][0-9]*))?$`)

// parseVersion parses the name of a release. Pre-releases are restricted to the names that wheels
// have, too.
func parseVersion(name string) (version, error) {
	if name == "" {
		return version{}, errors.New("a release needs a version: make release VERSION=v0.1.0")
	}
	m := versionName.FindStringSubmatch(name)
	if m == nil {
		return version{}, fmt.Errorf("%q is not the name of a version: use vMAJOR.MINOR.PATCH, such as v0.1.0, or with -alpha.N, -beta.N or -rc.N at its end", name)
	}
	return version{m[1], m[2], m[3]}, nil
}

// String returns what --version prints: v0.2.0-rc.1.
func (v version) String() string { return "v" + v.semantic() }

// semantic returns the version without v, as files, images and charts are named: 0.2.0-rc.1.
func (v version) semantic() string {
	if v.pre == "" {
		return v.core
	}
	return v.core + "-" + v.pre + "." + v.n
}

// python returns the version of the wheels: 0.2.0rc1.
func (v version) python() string {
	return v.core + strings.NewReplacer("alpha", "a", "beta", "b").Replace(v.pre) + v.n
}
