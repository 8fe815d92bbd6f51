package sink_test

import (
	"strings"
	"testing"

	"github.com/headgate/headgate/extproc/payload/sink"
)

// The URLs of MM_PAYLOAD_PROCESSORS of ModelMesh are accepted, and some more.
func TestURLsOfSinks(t *testing.T) {
	for _, c := range []struct{ text, to, model, method string }{
		{"http://10.10.10.1:8080/consumer/kserve/v2", "http://10.10.10.1:8080/consumer/kserve/v2", "", ""},
		{"https://sink.example", "https://sink.example", "", ""},
		{"https://user:secret@sink.example/a%2Fb", "https://user:xxxxx@sink.example/a%2Fb", "", ""},
		{"http://sink/x?pytorch1234#predict", "http://sink/x", "pytorch1234", "predict"},
		{"http://sink/x?#", "http://sink/x", "", ""},
		{"http://sink/x?*#*", "http://sink/x", "", ""},
		{"http://sink/x#my.Service/Predict", "http://sink/x", "", "my.Service/Predict"},
		{"http://sink/x#/v1/completions", "http://sink/x", "", "v1/completions"},
		{"http://sink/x?%E6%A8%A1%E5%9E%8B/v1%3F+a=b&c", "http://sink/x", "模型/v1?+a=b&c", ""},
		{"http://[::1]:80/x?m", "http://[::1]:80/x", "m", ""},
		{"logger://*", "logger://*", "", ""},
		{"logger:///*?pytorch1234#predict", "logger://*", "pytorch1234", "predict"},
		{"logger://*?*#*", "logger://*", "", ""},
	} {
		s, err := sink.Parse(c.text)
		if err != nil || s.String() != c.to || s.Model != c.model || s.Method != c.method {
			t.Errorf("%s: %s %q %q, %v", c.text, s, s.Model, s.Method, err)
		}
		if logs := strings.HasPrefix(c.to, "logger"); (s.URL == nil) != logs || !logs && (s.URL.RawQuery != "" || s.URL.Fragment != "") {
			t.Errorf("%s: it goes to %v", c.text, s.URL)
		}
	}
	for _, text := range []string{
		"", "sink/x", "ftp://sink/x", "http:///x", "http://:80/x", "//sink", "http://sink/x?%zz", "http://a b",
		"https:sink", "logger://u:p@x",
	} {
		if s, err := sink.Parse(text); err == nil {
			t.Errorf("%q is read as %s", text, s)
		}
	}
	if s, err := sink.Parse("ftp://user:secret@sink"); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("%v, %v", s, err)
	}
	s, err := sink.Parse("https://user:secret@sink.example")
	if password, _ := s.URL.User.Password(); err != nil || password != "secret" {
		t.Errorf("the password is shown: %v, %v", s, err)
	}
}

func TestPayloadsOfASink(t *testing.T) {
	for _, c := range []struct {
		text, method, model, vmodel string
		want                        bool
	}{
		{"http://sink", "S/M", "one", "", true},
		{"http://sink", "", "", "", true},
		{"http://sink?one", "S/M", "one", "", true},
		{"http://sink?one", "S/M", "two", "", false},
		{"http://sink?one", "S/M", "on", "", false},
		{"http://sink?one", "S/M", "one-2", "", false},
		{"http://sink?latest", "S/M", "one", "latest", true},
		{"http://sink?one", "S/M", "one", "latest", true},
		{"http://sink?other", "S/M", "one", "latest", false},
		{"http://sink?one", "S/M", "", "", false},
		{"http://sink#S/M", "S/M", "one", "", true},
		{"http://sink#S/M", "S/N", "one", "", false},
		{"http://sink#M", "S/M", "one", "", false},
		{"http://sink?one#S/M", "S/M", "one", "", true},
		{"http://sink?one#S/M", "S/M", "two", "", false},
		{"http://sink?one#S/M", "S/N", "one", "", false},
		{"logger://*?one#S/M", "S/N", "one", "", false},
	} {
		s, err := sink.Parse(c.text)
		if err != nil || s.Wants(c.method, c.model, c.vmodel) != c.want {
			t.Errorf("%s wants %s of %s, %s: %t, %v", c.text, c.method, c.model, c.vmodel, !c.want, err)
		}
	}
	for path, want := range map[string]string{
		"/a.B/C": "a.B/C", "/v1/completions?x=/y": "v1/completions", "/v2/models/m/infer": "v2/models/m/infer", "": "", "/": "",
		"//a": "/a", "/a?b?c": "a",
	} {
		if is := sink.MethodOf(path); is != want {
			t.Errorf("the method of %s is %s, want %s", path, is, want)
		}
	}
}
