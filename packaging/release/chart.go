package main

import (
	"errors"
	"regexp"
	"time"
)

var (
	chartVersion = regexp.MustCompile(`(?m)^version:.*$`)
	appVersion   = regexp.MustCompile(`(?m)^appVersion:.*$`)
)

// chart returns the Helm chart as helm package would, with the release's version.
func chart(v version, files members, at time.Time) ([]byte, error) {
	about, ok := files["Chart.yaml"]
	if !ok || !chartVersion.Match(about.content) || !appVersion.Match(about.content) {
		return nil, errors.New("packaging/chart/Chart.yaml needs the fields version and appVersion")
	}
	about.content = chartVersion.ReplaceAll(about.content, []byte("version: "+v.semantic()))
	about.content = appVersion.ReplaceAll(about.content, []byte(`appVersion: "`+v.semantic()+`"`))
	packed := members{}
	files.below("headgate", packed)
	packed["headgate/Chart.yaml"] = about
	return packed.tarball(at)
}
