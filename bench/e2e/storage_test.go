package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// builtAgent builds the agent beside the program headgate, once.
var builtAgent = sync.OnceValue(func() error {
	p, err := built.plain()
	if err != nil {
		return err
	}
	if out, err := exec.Command("go", "build", "-o", filepath.Dir(p.Headgate)+"/", "../../control/agent").CombinedOutput(); err != nil {
		return fmt.Errorf("build the agent: %w\n%s", err, out)
	}
	return nil
})

// The demo of models in storage: each of twenty models is fetched by an agent, loaded by an engine
// that listens on sockets only, and answers. The engines get the whole files.
func TestModelsFromStorage(t *testing.T) {
	runs(t)
	programs(t)
	if err := builtAgent(); err != nil {
		t.Fatal(err)
	}
	q := newQuickstartOf(t, "models")
	store := q.network + "1:8090"
	q.args = append(q.args, "--models", "--store", store, "--envoy-config", root+"/envoy.yaml", "--listen", q.network+"1:8080",
		"--modelmesh-rest", q.network+"1:8008", "--modelmesh-grpc", q.network+"1:8033")
	q.start()
	q.until("Ctrl-C stops everything")

	var calls sync.WaitGroup
	for i := 1; i <= 20; i++ {
		calls.Go(func() {
			id := fmt.Sprintf("customer-%02d", i)
			response, err := http.Post("http://"+q.network+"1:8080/v2/models/"+id+"/infer", "application/json",
				strings.NewReader(`{"inputs":[{"name":"x","shape":[1,1],"datatype":"FP64","data":[2.5]}]}`))
			if err != nil {
				t.Error(err)
				return
			}
			defer response.Body.Close()
			var answer struct {
				Model string `json:"model_name"`
			}
			text, err := io.ReadAll(response.Body)
			if err != nil || response.StatusCode != http.StatusOK || json.Unmarshal(text, &answer) != nil || answer.Model != id {
				t.Errorf("%s: %d, %s, %v", id, response.StatusCode, text, err)
			}
			copies, err := filepath.Glob(filepath.Join(q.dir, "run", "engine-*", "models", id, "model.joblib"))
			if err != nil || len(copies) == 0 {
				t.Errorf("%s: no engine has its file: %v, %v", id, copies, err)
				return
			}
			want, err := http.Get("http://" + store + "/" + id + "/model.joblib")
			if err != nil {
				t.Error(err)
				return
			}
			defer want.Body.Close()
			whole, err := io.ReadAll(want.Body)
			if err != nil {
				t.Error(err)
			}
			for _, file := range copies {
				if got, err := os.ReadFile(file); err != nil || string(got) != string(whole) {
					t.Errorf("%s differs from the store's: %d bytes, %v", file, len(got), err)
				}
			}
		})
	}
	calls.Wait()
	q.interrupt()
	q.nothingLeft()
}
