package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/headgate/headgate/test/surface"
)

// below are the commands of commands.
var below = []string{"extproc drain", "extproc install", "control bootstrap", "profile fit", "plan compare"}

// flagLine matches a flag in the list of flags of a help text.
var flagLine = regexp.MustCompile(`(?m)^ {2,6}(?:-\w, +)?(--[a-z][a-z0-9-]*)`)

// TestNames compares the names of commands and of their flags with the golden list.
func TestNames(t *testing.T) {
	commands := below
	for _, group := range program.Groups {
		for _, c := range group.Commands {
			commands = append(commands, c.Name)
		}
	}
	var names []string
	for _, command := range commands {
		names = append(names, "headgate "+command)
		_, help, _ := runHeadgate(t, append(append([]string{"headgate"}, strings.Fields(command)...), "--help")...)
		for _, flag := range flagLine.FindAllStringSubmatch(help, -1) {
			names = append(names, command+" "+flag[1])
		}
	}
	surface.Check(t, "flags", names)
}
