package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
)

// Versions of the client libraries. Later versions of the Node library require Node 22.
const (
	pythonClient = "openai==3.52.0"
	nodeClient   = "openai@6.49.0"
)

// seen is what a client saw. The Python and Node clients print it as JSON.
type seen struct {
	Models []string
	Model  string
	Chat   struct {
		Text, Finish string
		Tokens       int
	}
	Stream struct {
		Text, Model string
		Tokens      int
	}
	Completion       struct{ Text, Model string }
	CompletionStream string `json:"completion_stream"`
	Embeddings       []int
	Response         int
	Unknown          struct {
		Status            int
		Code, Param, Type string
	}
	Empty struct {
		Status int
		Param  string
	}
}

func (s seen) check(t *testing.T) {
	t.Helper()
	if want := append(slices.Clone(adapters), baseRoute); !slices.Equal(s.Models, want) || s.Model != "a01" {
		t.Errorf("models %v, %s", s.Models, s.Model)
	}
	if s.Chat.Text == "" || s.Chat.Tokens != 5 || s.Chat.Finish != "length" {
		t.Errorf("chat %+v", s.Chat)
	}
	if s.Stream.Text == "" || s.Stream.Tokens != 5 || s.Stream.Model != "a01" {
		t.Errorf("stream %+v", s.Stream)
	}
	if s.Completion.Text == "" || s.Completion.Model != "a01" || s.CompletionStream == "" {
		t.Errorf("completion %+v, %q", s.Completion, s.CompletionStream)
	}
	if len(s.Embeddings) != 2 || s.Embeddings[0] == 0 || s.Embeddings[0] != s.Embeddings[1] || s.Response != 5 {
		t.Errorf("embeddings %v, response %d", s.Embeddings, s.Response)
	}
	if s.Unknown.Status != 404 || s.Unknown.Code != "model_not_found" || s.Unknown.Param != "model" ||
		s.Unknown.Type != "invalid_request_error" {
		t.Errorf("an unknown model: %+v", s.Unknown)
	}
	if s.Empty.Status != 400 || s.Empty.Param != "model" {
		t.Errorf("an empty model: %+v", s.Empty)
	}
}

// install runs a package manager in a folder of the cache, once for each version. A lock excludes
// other test processes.
func install(t *testing.T, name string, run func(dir string) *exec.Cmd) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join(cache, name))
	if err != nil {
		t.Fatal(err)
	}
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	done := filepath.Join(dir, "installed")
	if _, err := os.Stat(done); err == nil {
		return dir
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := run(dir).CombinedOutput(); err != nil {
		t.Fatalf("install %s (the tests need Python 3 with pip and venv, and Node with npm): %v\n%s", name, err, out)
	}
	if err := os.WriteFile(done, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func runClient(t *testing.T, name string, args ...string) seen {
	t.Helper()
	command := exec.CommandContext(t.Context(), name, args...)
	var faults bytes.Buffer
	command.Stderr = &faults
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, faults.String())
	}
	var s seen
	if err := json.Unmarshal(out, &s); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return s
}

func TestRealClients(t *testing.T) {
	runs(t)
	s := start(t)
	t.Run("python", func(t *testing.T) {
		dir := install(t, "python-"+pythonClient, func(dir string) *exec.Cmd {
			return exec.Command("sh", "-c", "python3 -m venv '"+dir+"/venv' && '"+dir+
				"/venv/bin/pip' install --quiet --disable-pip-version-check "+pythonClient)
		})
		runClient(t, dir+"/venv/bin/python", "clients/client.py", s.url, baseRoute, "a01").check(t)
	})
	t.Run("node", func(t *testing.T) {
		dir := install(t, "node-"+nodeClient, func(dir string) *exec.Cmd {
			return exec.Command("npm", "install", "--silent", "--no-save", "--no-package-lock", "--prefix", dir, nodeClient)
		})
		runClient(t, "node", "clients/client.mjs", dir, s.url, baseRoute, "a01").check(t)
	})
	t.Run("go", func(t *testing.T) { goClient(t, s).check(t) })
	s.await("every request has ended, those that clients left too", func() bool { return s.inFlight() == 0 })
}

// goClient makes the same calls as the Python and Node clients, with openai-go.
func goClient(t *testing.T, s *stack) (saw seen) {
	t.Helper()
	ctx := t.Context()
	client := openai.NewClient(option.WithBaseURL(s.url+"/v1"), option.WithAPIKey("none"), option.WithMaxRetries(0),
		option.WithHTTPClient(s.client))
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	models, err := client.Models.List(ctx)
	must(err)
	for _, m := range models.Data {
		saw.Models = append(saw.Models, m.ID)
	}
	model, err := client.Models.Get(ctx, "a01")
	must(err)
	saw.Model = model.ID

	ask := func(model string, tokens int64) openai.ChatCompletionNewParams {
		return openai.ChatCompletionNewParams{
			Model: model, MaxTokens: openai.Int(tokens),
			Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hello")},
		}
	}
	chat, err := client.Chat.Completions.New(ctx, ask(baseRoute, 5))
	must(err)
	saw.Chat.Text, saw.Chat.Finish, saw.Chat.Tokens = chat.Choices[0].Message.Content, chat.Choices[0].FinishReason,
		int(chat.Usage.CompletionTokens)

	params := ask("a01", 5)
	params.StreamOptions.IncludeUsage = openai.Bool(true)
	stream := client.Chat.Completions.NewStreaming(ctx, params)
	for stream.Next() {
		chunk := stream.Current()
		if len(chunk.Choices) > 0 {
			saw.Stream.Text += chunk.Choices[0].Delta.Content
		}
		saw.Stream.Model, saw.Stream.Tokens = chunk.Model, int(chunk.Usage.CompletionTokens)
	}
	must(stream.Err())

	prompt := openai.CompletionNewParams{
		Model: "a01", MaxTokens: openai.Int(5),
		Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("hello")},
	}
	completion, err := client.Completions.New(ctx, prompt)
	must(err)
	saw.Completion.Text, saw.Completion.Model = completion.Choices[0].Text, completion.Model
	texts := client.Completions.NewStreaming(ctx, prompt)
	for texts.Next() {
		saw.CompletionStream += texts.Current().Choices[0].Text
	}
	must(texts.Err())

	embeddings, err := client.Embeddings.New(ctx, openai.EmbeddingNewParams{
		Model: baseRoute, Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"hello", "world"}},
		EncodingFormat: openai.EmbeddingNewParamsEncodingFormatFloat,
	})
	must(err)
	for _, e := range embeddings.Data {
		saw.Embeddings = append(saw.Embeddings, len(e.Embedding))
	}
	response, err := client.Responses.New(ctx, responses.ResponseNewParams{
		Model: baseRoute, MaxOutputTokens: openai.Int(5), Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("hello")},
	})
	must(err)
	saw.Response = int(response.Usage.OutputTokens)

	left := client.Chat.Completions.NewStreaming(ctx, ask(baseRoute, 500))
	left.Next()
	must(left.Close()) // cancel the stream

	var fault *openai.Error
	if _, err := client.Chat.Completions.New(ctx, ask("no-such-model", 5)); errors.As(err, &fault) {
		saw.Unknown.Status, saw.Unknown.Code, saw.Unknown.Param, saw.Unknown.Type = fault.StatusCode, fault.Code, fault.Param, fault.Type
	}
	if _, err := client.Chat.Completions.New(ctx, ask("", 5)); errors.As(err, &fault) {
		saw.Empty.Status, saw.Empty.Param = fault.StatusCode, fault.Param
	}
	return saw
}
