package main

import "testing"

func TestProcessors(t *testing.T) {
	for available, want := range map[int]int{1: 1, 2: 1, 4: 1, 7: 1, 8: 2, 12: 3, 16: 4, 128: 4} {
		if got := processors(available); got != want {
			t.Errorf("of %d processors it uses %d, want %d", available, got, want)
		}
	}
}
