// Package version returns the version of Headgate that a program was built from. Go writes it into
// each program built in a repository, and make release into those of a release.
package version

import (
	"cmp"
	"runtime"
	"runtime/debug"
)

// released is the version of a release. The linker sets it, with -X.
var released string

// unversioned is the version of a program built outside a repository, or with -buildvcs=false.
const unversioned = "devel"

// Version is the version of a program, such as v0.1.0, or v0.0.0-20261121101112-abcdef123456 (the
// time and the revision of a commit; with +dirty where files were changed since), and of the Go
// that built it, such as go1.26.8.
type Version struct{ Program, Go string }

// Of parses Go's build information, which may be nil.
func Of(info *debug.BuildInfo) Version {
	if info == nil {
		return Version{unversioned, runtime.Version()}
	}
	v := Version{cmp.Or(info.Main.Version, unversioned), cmp.Or(info.GoVersion, runtime.Version())}
	if v.Program == "(devel)" {
		v.Program = unversioned
	}
	return v
}

// Read returns the version of the running program.
func Read() Version {
	info, _ := debug.ReadBuildInfo() // nil if there is none
	v := Of(info)
	v.Program = cmp.Or(released, v.Program)
	return v
}

// String returns what --version prints after the program's name.
func (v Version) String() string { return v.Program + " (" + v.Go + ")" }
