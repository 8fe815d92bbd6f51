package engine

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReadOVMSModels(t *testing.T) {
	got, err := ReadOVMSModels([]byte(`{
 "ready": {"model_version_status": [{"version": "1", "state": "END", "status": {"error_code": "OK", "error_message": "OK"}},
   {"version": "2", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": "OK"}}]},
 "coming": {"model_version_status": [{"version": "1", "state": "LOADING", "status": {"error_code": "OK", "error_message": ""}}]},
 "failed": {"model_version_status": [{"version": "1", "state": "LOADING", "status": {"error_code": "UNKNOWN", "error_message": "UNKNOWN"}}]},
 "leaving": {"model_version_status": [{"version": "1", "state": "UNLOADING", "status": {"error_code": "OK"}}]},
 "retired": {"model_version_status": [{"version": "1", "state": "END", "status": {}}]},
 "newer": {"model_version_status": [{"version": "1", "state": "WARMING", "status": {}}]},
 "none": {"model_version_status": []}}`))
	want := map[string]StoredModel{
		"ready": {Name: "ready", Stage: Serving}, "coming": {Name: "coming", Stage: Coming}, "leaving": {Name: "leaving", Stage: Leaving},
		"failed":  {Name: "failed", Reason: "LOADING, error UNKNOWN: UNKNOWN"},
		"retired": {Name: "retired"}, "newer": {Name: "newer", Stage: Coming}, "none": {Name: "none"},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(err, diff)
	}
	for _, body := range []string{"", "null", "[]", `{"m": 1}`, "<html>"} {
		if _, err := ReadOVMSModels([]byte(body)); err == nil {
			t.Errorf("%q is read", body)
		}
	}
}

func TestOVMSModelList(t *testing.T) {
	for _, list := range []map[string]string{{}, {"b": "/models/b", "a \"x\"": "/models/a"}} {
		text, err := OVMSModelList(list)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ReadOVMSModelList(text)
		if diff := cmp.Diff(list, got); diff != "" || err != nil {
			t.Error(err, diff)
		}
	}
	if _, err := ReadOVMSModelList([]byte("x")); err == nil {
		t.Error("no JSON is read")
	}
}
