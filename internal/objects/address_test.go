package objects_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

func TestAddresses(t *testing.T) {
	for text, want := range map[string]objects.Address{
		"10.0.0.7:8000":              {IP: netip.MustParseAddr("10.0.0.7"), Port: 8000},
		"[fd00::7]:80":               {IP: netip.MustParseAddr("fd00::7"), Port: 80},
		"[::ffff:10.0.0.7]:80":       {IP: netip.MustParseAddr("10.0.0.7"), Port: 80},
		"localhost:8000":             {Name: "localhost", Port: 8000},
		"Engine-1.svc.cluster.:8000": {Name: "engine-1.svc.cluster.", Port: 8000},
		"compose_vllm_1:8000":        {Name: "compose_vllm_1", Port: 8000},
		"10.vllm:65535":              {Name: "10.vllm", Port: 65535},
	} {
		if got, err := objects.ParseAddress(text); err != nil || got != want {
			t.Errorf("%s is %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{
		"", "host", "host:", ":8000", "host:0", "host:65536", "host:http", "10.0.0:8000", "10.0.0.256:8000", "fd00::7:8000",
		"[fe80::7%eth0]:80", "a b:80", "-a:80", "a..b:80", "http://host:8000", "host:8000/v1", "10.0.0.7:0",
		strings.Repeat("a", 64) + ":80", strings.Repeat("a.", 127) + "a:80",
	} {
		if got, err := objects.ParseAddress(text); err == nil {
			t.Errorf("%q is taken for %+v", text, got)
		}
	}
}

// An address that no engine has is refused in every notation: clouds hand out credentials at
// 169.254.169.254.
func TestAddressesThatNoEngineHas(t *testing.T) {
	for text, is := range map[string]bool{
		"10.0.0.7": true, "192.168.1.1": true, "100.64.0.1": true, "8.8.8.8": true, "127.0.0.1": true, "127.9.9.9": true,
		"169.253.255.255": true, "169.255.0.0": true,
		"fd00::7": true, "2001:db8::1": true, "::1": true, "::ffff:10.0.0.7": true, "::ffff:127.0.0.1": true, "fec0::1": true,
		"169.254.169.254": false, "169.254.0.0": false, "169.254.255.255": false, "::ffff:169.254.169.254": false,
		"::ffff:a9fe:a9fe": false,
		"fe80::1":          false, "febf::1": false, "fe80::1%eth0": false,
		"0.0.0.0": false, "::": false, "::ffff:0.0.0.0": false,
		"224.0.0.1": false, "239.255.255.255": false, "::ffff:224.0.0.1": false, "ff02::1": false, "ff0e::1": false,
		"255.255.255.255": false, "::ffff:255.255.255.255": false,
	} {
		ip := netip.MustParseAddr(text)
		if err := objects.CheckIP(ip); (err == nil) != is {
			t.Errorf("%s: %v", text, err)
		}
		if ip.Zone() != "" {
			continue // not an address
		}
		address := netip.AddrPortFrom(ip, 8000).String()
		const want = "an engine's address must not be link-local, multicast, broadcast or unspecified"
		if got, err := objects.ParseAddress(address); (err == nil) != is || err != nil &&
			(err.Error() != want || got != objects.Address{}) {
			t.Errorf("%s is %+v, %v", address, got, err)
		}
		list := aList("l", nil, address)
		if errs := objects.CheckList(&list); (len(errs) == 0) != is {
			t.Errorf("a list of %s: %v", address, errs)
		}
	}
	if err := objects.CheckIP(netip.Addr{}); err == nil {
		t.Error("no address is taken for one")
	}
}

// An EndpointList in a cluster can reach neither loopback ports in Headgate's pods nor their files.
func TestClusterListsCannotReachHeadgatesPod(t *testing.T) {
	for address, is := range map[string]bool{
		"10.0.0.7:80": true, "engine:80": true, "localhost:80": true, // names are checked when they are resolved
		"127.0.0.1:80": false, "127.255.255.254:80": false, "[::1]:80": false, "[::ffff:127.0.0.1]:80": false, "169.254.169.254:80": false,
	} {
		list := aList("l", nil, address)
		if errs := objects.CheckClusterList(&list); (len(errs) == 0) != is {
			t.Errorf("%s: %v", address, errs)
		}
	}
	list := aList("l", nil, "10.0.0.7:80")
	for management, is := range map[string]bool{"": true, "port:8085": true, "unix:x": false, "unix:/run/x.sock": false} {
		if list.Spec.Management = management; (len(objects.CheckClusterList(&list)) == 0) != is || len(objects.CheckList(&list)) != 0 {
			t.Errorf("%q: %v, %v", management, objects.CheckClusterList(&list), objects.CheckList(&list))
		}
	}
	list.Spec.Management = "unix:/run/x.sock"
	for engine, is := range map[string]bool{"": true, "modelruntime": true, "torchserve": false, "triton": false, "tfserving": false} {
		if list.Spec.Engine = engine; (len(objects.CheckList(&list)) == 0) != is {
			t.Errorf("%q at a socket: %v", engine, objects.CheckList(&list))
		}
	}

	set := objects.Set{
		Pools: []pool.InferencePool{aPool("base", llama, 8000)},
		Pods:  []objects.Pod{aPod("a", "127.0.0.11", true, llama)}, // set by a kubelet
		Lists: []objects.List{
			{EndpointList: aList("theirs", llama, "engine:1")},
			{EndpointList: aList("ours", llama, "engine:2"), Loopback: true},
		},
		Hosts: map[string][]netip.Addr{"engine": {netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("10.0.0.1")}},
	}
	if got := objects.Build(set).Addresses(); !slices.Equal(got, []string{"10.0.0.1:1", "10.0.0.1:2", "127.0.0.11:8000", "127.0.0.1:2"}) {
		t.Errorf("the endpoints are %v", got)
	}
}

func aList(name string, labels map[string]string, addresses ...string) v1alpha1.EndpointList {
	return v1alpha1.EndpointList{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: labels},
		Spec:       v1alpha1.EndpointListSpec{Addresses: addresses},
	}
}

// A list has its own ports, a name stands for each of its addresses, and pods may be listed beside
// it.
func TestPoolSelectsListsAsItSelectsPods(t *testing.T) {
	typed := aList("typed", llama, "engines.test:9000", "unknown.test:9000")
	typed.Spec.Engine = "tgi"
	typed.Labels = map[string]string{"app": "llama", engine.KindLabel: "vllm"}
	elsewhere := aList("elsewhere", llama, "10.0.0.5:1")
	elsewhere.Namespace = "other"
	w := objects.Build(objects.Set{
		Pools: []pool.InferencePool{aPool("base", llama, 8000)},
		Pods:  []objects.Pod{aPod("pod", "10.0.0.1", true, map[string]string{"app": "llama", engine.LegacyKindLabel: "sglang"})},
		Lists: []objects.List{{EndpointList: aList("plain", llama, "10.0.0.2:8001")}, {EndpointList: typed}, {EndpointList: elsewhere}},
		Hosts: map[string][]netip.Addr{"engines.test": {netip.MustParseAddr("10.0.0.3"), netip.MustParseAddr("10.0.0.4")}},
	})
	name := func(n string) objects.Name { return objects.Name{Namespace: "default", Name: n} }
	want := []objects.Endpoint{
		{
			Address: "10.0.0.1:8000", Pod: name("pod"), Labels: map[string]string{"app": "llama", engine.LegacyKindLabel: "sglang"},
			Kind: engine.SGLang, Ready: true,
		},
		{Address: "10.0.0.2:8001", Pod: name("plain"), Listed: true, Labels: llama, Ready: true},
		{
			Address: "10.0.0.3:9000", Host: "engines.test", Pod: name("typed"), Listed: true, Labels: typed.Labels, Kind: engine.TGI,
			Ready: true,
		},
		{
			Address: "10.0.0.4:9000", Host: "engines.test", Pod: name("typed"), Listed: true, Labels: typed.Labels, Kind: engine.TGI,
			Ready: true,
		},
	}
	if diff := cmp.Diff(want, w.Pools[name("base")].Endpoints); diff != "" {
		t.Errorf("endpoints (-want +got):\n%s", diff)
	}
	if want := []string{"EndpointList other/elsewhere: no InferencePool of its namespace selects its labels: nothing uses it"}; !slices.Equal(w.Problems, want) {
		t.Errorf("problems are %q", w.Problems)
	}
}

func TestUnknownKindOfEngineIsDetected(t *testing.T) {
	xllm := map[string]string{"app": "llama", engine.KindLabel: "xllm"}
	w := objects.Build(objects.Set{
		Pools: []pool.InferencePool{aPool("base", llama, 8000)},
		Pods:  []objects.Pod{aPod("a", "10.0.0.1", true, xllm), aPod("b", "10.0.0.2", true, xllm)},
	})
	if e := w.Pools[objects.Name{Namespace: "default", Name: "base"}].Endpoints; len(e) != 2 || e[0].Kind != "" {
		t.Errorf("endpoints are %+v", e)
	}
	if len(w.Problems) != 1 || !strings.Contains(w.Problems[0],
		`the labels of default/a name the engine "xllm", which is not one of [vllm `) {
		t.Errorf("problems are %q", w.Problems)
	}
}

// --endpoints makes a pool of its own, which takes precedence over an object of the same name.
func TestPlainAddressesAreAPool(t *testing.T) {
	set := objects.Endpoints([]string{"10.0.0.1:8000", "engine:8000"})
	if got := set.Names(); !slices.Equal(got, []string{"engine"}) {
		t.Errorf("names are %v", got)
	}
	set = set.Join(objects.Set{
		Pools:  []pool.InferencePool{aPool("endpoints", llama, 9000), aPool("base", llama, 9000)},
		Pods:   []objects.Pod{aPod("a", "10.0.0.9", true, llama)},
		Routes: []v1alpha1.LLMRoute{aRoute("r", "endpoints", 0)},
		Lists:  []objects.List{{EndpointList: aList("more", llama, "a.test:1", "engine:2")}},
	})
	if got := set.Names(); !slices.Equal(got, []string{"a.test", "engine"}) {
		t.Errorf("names are %v", got)
	}
	w := objects.Build(set)
	if e := w.Pools[objects.EndpointsPool].Endpoints; len(e) != 1 || e[0].Address != "10.0.0.1:8000" || !e[0].Ready {
		t.Errorf("endpoints are %+v", e)
	}
	if got := w.Addresses(); !slices.Equal(got, []string{"10.0.0.1:8000", "10.0.0.9:9000"}) || w.Route("r") == nil {
		t.Errorf("all endpoints are %v", got)
	}
	if want := []string{"InferencePool default/endpoints is defined twice: Headgate uses the one of --endpoints"}; !slices.Equal(w.Problems, want) {
		t.Errorf("problems are %q", w.Problems)
	}
}
