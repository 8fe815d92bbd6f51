//go:build linux

package conformance

import (
	"slices"
	"strings"
	"testing"
)

func TestImagesMatchTheManifests(t *testing.T) {
	const manifests = `
      containers:
        - name: a
          image: registry.k8s.io/gateway-api/echo-basic:v1.5.1
        - image: "registry.k8s.io/gateway-api/echo-basic:v1.6.0"
          imagePullPolicy: IfNotPresent
        - image: registry.k8s.io/coredns/coredns:v1.12.2
        - name: b
          image: registry.k8s.io/gateway-api/echo-basic:v1.5.1
`
	names := imagesOf(manifests)
	if want := []string{
		"registry.k8s.io/coredns/coredns:v1.12.2", "registry.k8s.io/gateway-api/echo-basic:v1.5.1",
		"registry.k8s.io/gateway-api/echo-basic:v1.6.0",
	}; !slices.Equal(names, want) {
		t.Fatalf("the images are %v, want %v", names, want)
	}
	for _, name := range names {
		i, err := imageFor(name, "/tmp/echo", "/tmp/dns")
		if err != nil {
			t.Fatal(err)
		}
		dns := strings.Contains(name, "coredns")
		if want := map[bool]string{true: "/dns", false: "/echo"}[dns]; i.Name != name || i.Entrypoint[0] != want || i.Root != dns {
			t.Errorf("%s is %+v", name, i)
		}
	}
	if _, err := imageFor("registry.k8s.io/else:v1", "/tmp/echo", "/tmp/dns"); err == nil {
		t.Error("an image that nothing here makes is made")
	}
}

func TestResultsListTestsAndFailures(t *testing.T) {
	output := `=== RUN   TestConformance/A
--- FAIL: TestConformance (3.00s)
    --- PASS: TestConformance/A (1.00s)
        --- PASS: TestConformance/A/part (0.50s)
    --- SKIP: TestConformance/B (0.00s)
    --- FAIL: TestConformance/C (1.00s)
        --- FAIL: TestConformance/C/part (0.50s)
` + strings.Repeat("x", 2<<20) + "\n"
	in := strings.NewReader(output)
	var told strings.Builder
	if passed, failed := results(in, &told); passed != 1 || failed != 1 {
		t.Errorf("%d passed and %d failed, want 1 and 1", passed, failed)
	}
	if want := "    --- PASS: TestConformance/A (1.00s)\n    --- FAIL: TestConformance/C (1.00s)\n        --- FAIL: TestConformance/C/part (0.50s)\n"; told.String() != want {
		t.Errorf("told is\n%s, want\n%s", &told, want)
	}
	if in.Len() > 0 {
		t.Error("output is left, for which the suite would wait")
	}
}
